"""``synrepl federation``: other servers, as this one sees them."""
