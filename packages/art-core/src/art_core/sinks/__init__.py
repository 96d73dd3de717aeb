"""Where metrics go besides the run folder, one library per module, and what hands them on."""
