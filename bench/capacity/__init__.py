"""How many nodes a show needs: a model that a reader can check with a pocket calculator."""
