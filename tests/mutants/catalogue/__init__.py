"""All mutants, by the part of the room rules that they break."""

from __future__ import annotations

from tests.mutants.catalogue.auth import AUTH
from tests.mutants.catalogue.formats import FORMATS
from tests.mutants.catalogue.power import POWER
from tests.mutants.catalogue.resolution import RESOLUTION
from tests.mutants.catalogue.visibility import VISIBILITY
from tests.mutants.catalogue.whole_rooms import WHOLE_ROOMS
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*FORMATS, *AUTH, *POWER, *RESOLUTION, *WHOLE_ROOMS, *VISIBILITY)
