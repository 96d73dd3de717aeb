"""Where base weights come from, and the adapter that is trained on top of them."""
