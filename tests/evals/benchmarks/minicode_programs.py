"""For each problem of `minicode`: a right program, and wrong ones of the usual kinds.

`too_slow` programs are right but for their speed.
"""

from __future__ import annotations


def fn(signature: str, *body: str) -> str:
    """A `Solution` with one method."""
    return f"class Solution:\n    def {signature}:\n" + "".join(f"        {line}\n" for line in body)


RIGHT: dict[str, str] = {
    "mini-digit-sum": """
n = int(input())
total, p = 0, 1
while p <= n:
    high, rest = divmod(n, p * 10)
    digit, low = divmod(rest, p)
    total += high * 45 * p + digit * (digit - 1) // 2 * p + digit * (low + 1)
    p *= 10
print(total)
""",
    "mini-stairs": """
def main():
    n = int(input())
    a, b, c = 0, 0, 1
    for _ in range(n):
        a, b, c = b, c, (a + b + c) % 1000000007
    print(c)

if __name__ == '__main__':
    main()
""",
    "mini-meeting-point": """
import sys
data = sys.stdin.read().split()
n = int(data[0])
xs = sorted(map(int, data[1:n + 1]))
middle = xs[n // 2]
print(sum(abs(x - middle) for x in xs))
""",
    "mini-tickets": """
k = int(input())
low, high = 1, 4 * k
while low < high:
    m = (low + high) // 2
    if m - m // 3 - m // 5 + m // 15 >= k:
        high = m
    else:
        low = m + 1
print(low)
""",
    "mini-robot": """
moves = input().strip()
k = int(input())
dx = moves.count("E") - moves.count("W")
dy = moves.count("N") - moves.count("S")
print(dx * k, dy * k)
""",
    "mini-coins": """
amount = int(input())
coins = list(map(int, input().split()))
ways = [1] + [0] * amount
for c in coins:
    for s in range(c, amount + 1):
        ways[s] += ways[s - c]
print(ways[amount])
""",
    "mini-factorial-zeros": fn(
        "trailingZeros(self, n: int) -> int", "zeros = 0", "while n:", "    n //= 5", "    zeros += n", "return zeros"
    ),
    "mini-merge-intervals": fn(
        "mergeIntervals(self, intervals: List[List[int]]) -> List[List[int]]",
        "merged = []",
        "for a, b in sorted(intervals):",
        "    if merged and a <= merged[-1][1]:",
        "        merged[-1][1] = max(merged[-1][1], b)",
        "    else:",
        "        merged.append([a, b])",
        "return merged",
    ),
    "mini-grid-ways": fn(
        "waysOnGrid(self, rows: int, cols: int) -> int", "return comb(rows + cols - 2, rows - 1)"
    ),
    "mini-edit-distance": fn(
        "editDistance(self, a: str, b: str) -> int",
        "row = list(range(len(b) + 1))",
        "for i, x in enumerate(a, 1):",
        "    above, row[0] = row[0], i",
        "    for j, y in enumerate(b, 1):",
        "        above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))",
        "return row[-1]",
    ),
    "mini-next-palindrome": fn(
        "nextPalindrome(self, n: int) -> int",
        "s = str(n + 1)",
        "half = s[:(len(s) + 1) // 2]",
        "made = int(half + half[::-1][len(s) % 2:])",
        "if made > n:",
        "    return made",
        "half = str(int(half) + 1)",
        "return int(half + half[::-1][len(s) % 2:])",
    ),
    "mini-power-remainder": fn(
        "powerRemainder(self, base: int, exponent: int, modulus: int) -> int",
        "result = 1 % modulus",
        "base %= modulus",
        "while exponent:",
        "    if exponent & 1:",
        "        result = result * base % modulus",
        "    base = base * base % modulus",
        "    exponent >>= 1",
        "return result",
    ),
}  # fmt: skip

WRONG: dict[str, dict[str, str]] = {
    "mini-digit-sum": {
        "off_by_one": "n = int(input())\nprint(sum(sum(map(int, str(i))) for i in range(min(n, 10 ** 5))))",
        "wrong_type": "n = int(input())\nprint([sum(sum(map(int, str(i))) for i in range(min(n, 10 ** 5) + 1))])",
        "too_slow": "n = int(input())\nprint(sum(sum(map(int, str(i))) for i in range(n + 1)))",
    },
    "mini-stairs": {
        "off_by_one": "n = int(input())\na, b, c = 0, 0, 1\nfor _ in range(n - 1):\n    a, b, c = b, c, (a + b + c) % 1000000007\nprint(c)",
        "no_remainder": "n = int(input())\na, b, c = 0, 0, 1\nfor _ in range(n):\n    a, b, c = b, c, a + b + c\nprint(c)",
        "wrong_type": "n = int(input())\na, b, c = 0, 0, 1\nfor _ in range(n):\n    a, b, c = b, c, a + b + c\nprint(c / 1)",
        "too_slow": "def f(n):\n    return (n == 0) if n <= 0 else f(n - 1) + f(n - 2) + f(n - 3)\nprint(f(int(input())) % 1000000007)",
    },
    "mini-meeting-point": {
        "off_by_one": "n = int(input())\nxs = sorted(map(int, input().split()))\nm = xs[max(0, n // 2 - 2)]\nprint(sum(abs(x - m) for x in xs))",
        "mean_for_median": "n = int(input())\nxs = list(map(int, input().split()))\nm = sum(xs) // n\nprint(sum(abs(x - m) for x in xs))",
        "wrong_type": "n = int(input())\nxs = sorted(map(int, input().split()))\nm = xs[n // 2]\nprint('sum', sum(abs(x - m) for x in xs))",
        "too_slow": "n = int(input())\nxs = list(map(int, input().split()))\nprint(min(sum(abs(x - p) for x in xs) for p in range(min(xs), max(xs) + 1)))",
    },
    "mini-tickets": {
        "off_by_one": "k = int(input())\nn = 0\nwhile k > 1 and n < 10 ** 6:\n    n += 1\n    k -= n % 3 > 0 and n % 5 > 0\nprint(n)",
        "float": "k = int(input())\nprint(round(k * 15 / 8))",
        "wrong_type": "k = int(input())\nprint(str(k).zfill(3), 'th')",
        "too_slow": "k = int(input())\nn = 0\nwhile k:\n    n += 1\n    k -= n % 3 > 0 and n % 5 > 0\nprint(n)",
    },
    "mini-robot": {
        "off_by_one": "m = input()\nk = int(input()) - 1\nprint((m.count('E') - m.count('W')) * k, (m.count('N') - m.count('S')) * k)",
        "swapped": "m = input()\nk = int(input())\nprint((m.count('N') - m.count('S')) * k, (m.count('E') - m.count('W')) * k)",
        "wrong_type": "m = input()\nk = int(input())\nprint(((m.count('E') - m.count('W')) * k, (m.count('N') - m.count('S')) * k))",
        "too_slow": "m = input()\nk = int(input())\nx = y = 0\nfor _ in range(k):\n    for c in m:\n        x += (c == 'E') - (c == 'W')\n        y += (c == 'N') - (c == 'S')\nprint(x, y)",
    },
    "mini-coins": {
        "off_by_one": "a = int(input())\nw = [1] + [0] * a\nfor c in map(int, input().split()):\n    for s in range(c, a):\n        w[s] += w[s - c]\nprint(w[a])",
        "order_counts": "a = int(input())\ncs = list(map(int, input().split()))\nw = [1] + [0] * a\nfor s in range(1, a + 1):\n    w[s] = sum(w[s - c] for c in cs if c <= s)\nprint(w[a])",
        "wrong_type": "a = int(input())\nw = [1.5] + [0] * a\nfor c in map(int, input().split()):\n    for s in range(c, a + 1):\n        w[s] += w[s - c]\nprint(w[a])",
        "too_slow": "import sys\nsys.setrecursionlimit(10 ** 6)\na = int(input())\ncs = list(map(int, input().split()))\ndef f(a, i):\n    if a == 0: return 1\n    if a < 0 or i == len(cs): return 0\n    return f(a - cs[i], i) + f(a, i + 1)\nprint(f(a, 0))",
    },
    "mini-factorial-zeros": {
        "off_by_one": fn("trailingZeros(self, n: int) -> int", "z = 0", "while n >= 25:", "    n //= 5", "    z += n", "return z"),
        "fives_only": fn("trailingZeros(self, n: int) -> int", "return n // 5"),
        "wrong_type": fn("trailingZeros(self, n: int) -> int", "z = 0", "while n:", "    n //= 5", "    z += n", "return str(z)"),
        "too_slow": fn("trailingZeros(self, n: int) -> int", "z = 0", "for i in range(5, n + 1, 5):", "    while i % 5 == 0:", "        i //= 5", "        z += 1", "return z"),
    },
    "mini-merge-intervals": {
        "off_by_one": fn("mergeIntervals(self, intervals)", "m = []", "for a, b in sorted(intervals):", "    if m and a < m[-1][1]:", "        m[-1][1] = max(m[-1][1], b)", "    else:", "        m.append([a, b])", "return m"),
        "not_sorted": fn("mergeIntervals(self, intervals)", "m = []", "for a, b in intervals:", "    if m and a <= m[-1][1]:", "        m[-1][1] = max(m[-1][1], b)", "    else:", "        m.append([a, b])", "return m"),
        "wrong_type": fn("mergeIntervals(self, intervals)", "m = []", "for a, b in sorted(intervals):", "    if m and a <= m[-1][1]:", "        m[-1] = (m[-1][0], max(m[-1][1], b))", "    else:", "        m.append((a, b))", "return m"),
        "too_slow": fn("mergeIntervals(self, intervals)", "points = {p for a, b in intervals for p in (a, b)}", "low, m, start = min(points), [], None", "for p in range(low, max(points) + 1):", "    inside = any(a <= p < b for a, b in intervals)", "    if inside and start is None: start = p", "    if not inside and start is not None:", "        m.append([start, p])", "        start = None", "return m"),
    },
    "mini-grid-ways": {
        "off_by_one": fn("waysOnGrid(self, rows, cols)", "return comb(rows + cols, rows)"),
        "wrong_type": fn("waysOnGrid(self, rows, cols)", "return [comb(rows + cols - 2, rows - 1)]"),
        "float": fn("waysOnGrid(self, rows, cols)", "w = 1.0", "for i in range(1, rows): w = w * (cols - 1 + i) / i", "return int(w)"),
        "too_slow": fn("waysOnGrid(self, rows, cols)", "if rows == 1 or cols == 1: return 1", "return self.waysOnGrid(rows - 1, cols) + self.waysOnGrid(rows, cols - 1)"),
    },
    "mini-edit-distance": {
        "off_by_one": fn("editDistance(self, a, b)", "row = list(range(len(b) + 1))", "for i, x in enumerate(a):", "    above, row[0] = row[0], i", "    for j, y in enumerate(b, 1):", "        above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))", "return row[-1]"),
        "hamming": fn("editDistance(self, a, b)", "return sum(x != y for x, y in zip(a, b)) + abs(len(a) - len(b))"),
        "wrong_type": fn("editDistance(self, a, b)", "return {'distance': abs(len(a) - len(b))}"),
        "too_slow": fn("editDistance(self, a, b)", "if not a or not b: return len(a) + len(b)", "return min(self.editDistance(a[1:], b) + 1, self.editDistance(a, b[1:]) + 1, self.editDistance(a[1:], b[1:]) + (a[0] != b[0]))"),
    },
    "mini-next-palindrome": {
        "off_by_one": fn("nextPalindrome(self, n)", "s = str(n)", "h = s[:(len(s) + 1) // 2]", "return int(h + h[::-1][len(s) % 2:])"),
        "string": fn("nextPalindrome(self, n)", "n += 1", "for _ in range(10 ** 5):", "    if str(n) == str(n)[::-1]: return str(n)", "    n += 1"),
        "wrong_type": fn("nextPalindrome(self, n)", "n += 1", "for _ in range(10 ** 5):", "    if str(n) == str(n)[::-1]: return [n]", "    n += 1"),
        "too_slow": fn("nextPalindrome(self, n)", "n += 1", "while str(n) != str(n)[::-1]: n += 1", "return n"),
    },
    "mini-power-remainder": {
        "off_by_one": fn("powerRemainder(self, base, exponent, modulus)", "return pow(base, exponent + 1, modulus)"),
        "modulus_one": fn("powerRemainder(self, base, exponent, modulus)", "r = 1", "while exponent:", "    if exponent & 1: r = r * base % modulus", "    base = base * base % modulus", "    exponent >>= 1", "return r"),
        "wrong_type": fn("powerRemainder(self, base, exponent, modulus)", "return (pow(base, exponent, modulus),)"),
        "too_slow": fn("powerRemainder(self, base, exponent, modulus)", "r = 1 % modulus", "for _ in range(exponent): r = r * base % modulus", "return r"),
    },
}  # fmt: skip
