"""The mathematics of one layer: five slots, filled by named parts. Nothing but torch."""
