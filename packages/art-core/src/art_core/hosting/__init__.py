"""Several trainable models behind one server: each with its run folder, its engine and its trainer."""
