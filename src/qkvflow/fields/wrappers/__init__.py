"""Fields around another field: held at one depth, adapted, or made beforehand."""
