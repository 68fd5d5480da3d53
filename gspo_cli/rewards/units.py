"""The words that may follow a number without changing it, and those that may not."""

_UNITS = """
percent degree degrees deg radian radians dollar dollars cent cents euro euros
second seconds sec minute minutes min hour hours hr hrs day days week weeks month months year years
mm cm dm km meter meters metre metres centimeter centimeters kilometer kilometers
inch inches foot feet ft yard yards mile miles mi mph kph
mg kg gram grams kilogram kilograms ton tons ounce ounces oz pound pounds lb lbs
liter liters litre litres ml gallon gallons
unit units square sq cubic cu per point points people person student students way ways time times
"""
_NO_UNITS = """
or and not no is to than mod modulo base from between plus minus over divided by if but at about more less
hundred thousand million billion trillion dozen pi factorial squared cubed
octal hex hexadecimal binary wrong false
"""

UNITS = frozenset(_UNITS.split())
"""Dropped behind a number wherever they stand."""
NO_UNITS = frozenset(_NO_UNITS.split())
"""Kept even within `\\text{..}`, where any other word is taken for a unit: dropping one would change the answer."""
