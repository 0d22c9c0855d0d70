"""All mutants, by the part of the room rules, of the room store, or of federation, that they break."""

from __future__ import annotations

from tests.mutants.catalogue.auth import AUTH
from tests.mutants.catalogue.federation import FEDERATION_MUTANTS
from tests.mutants.catalogue.formats import FORMATS
from tests.mutants.catalogue.partial_rooms import PARTIAL_ROOMS
from tests.mutants.catalogue.power import POWER
from tests.mutants.catalogue.resolution import RESOLUTION
from tests.mutants.catalogue.store_importing import IMPORTING
from tests.mutants.catalogue.store_maintenance import MAINTAINING
from tests.mutants.catalogue.store_persisting import PERSISTING
from tests.mutants.catalogue.store_visibility import SEEING
from tests.mutants.catalogue.visibility import VISIBILITY
from tests.mutants.catalogue.whole_rooms import WHOLE_ROOMS
from tests.mutants.mutant import Mutant

#: Of the room rules.
RULES: tuple[Mutant, ...] = (*FORMATS, *AUTH, *POWER, *RESOLUTION, *WHOLE_ROOMS, *VISIBILITY)

#: Of the room store, whose tests need a database.
STORE: tuple[Mutant, ...] = (*MAINTAINING, *PERSISTING, *IMPORTING, *SEEING)

#: Of what the server has to do with others, whose tests need a database.
FEDERATION: tuple[Mutant, ...] = (*PARTIAL_ROOMS, *FEDERATION_MUTANTS)

MUTANTS: tuple[Mutant, ...] = (*RULES, *STORE, *FEDERATION)
