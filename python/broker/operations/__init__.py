"""What can be done, by whom and with what; both doors translate to it and add nothing."""
