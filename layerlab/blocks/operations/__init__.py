"""Operations that several parts need, with their derivatives."""
