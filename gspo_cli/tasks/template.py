"""`task.template`: the text of a prompt with a place for the question."""

PLACE = "{question}"


def fill(template: str, question: str) -> str:
    """The template with the question in its place. Other braces stay: questions and templates hold LaTeX and JSON."""
    return template.replace(PLACE, question)
