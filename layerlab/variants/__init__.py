"""One idea, one file: the parts it needs and, at the foot, `PARTS` and `VARIANTS`."""
