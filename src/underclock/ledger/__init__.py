"""What runs saved: controllers append to the user's file, ``underclock saved`` adds up."""
