"""What saliency needs: whom it is asked about, its scores, and their picture."""
