"""Programs that hold an engine's model. They run in interpreters that do not have this package: each file imports only
its neighbours, the standard library and its engine."""
