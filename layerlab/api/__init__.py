"""The public functions: the only place where measuring, training and reporting meet."""
