"""What runs saved: conductors append to the user's file, ``underclock saved`` adds up."""
