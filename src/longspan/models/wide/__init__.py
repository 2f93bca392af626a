"""Count-based models inside the models of tasks: a module for each kind. A model with one adds it as its wide part."""
