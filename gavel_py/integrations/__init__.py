"""Other programs that decide on clusters, driven or fed by gavel_py: one package for each."""
