"""What a recipe needs, computed from its model's configuration alone: memory of each GPU, time of each phase.

Formulas are pure functions with their source beside them; what is assumed is named in the plan itself.
"""
