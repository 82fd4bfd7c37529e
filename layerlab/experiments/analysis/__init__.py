"""From the folders of runs to a comparison."""
