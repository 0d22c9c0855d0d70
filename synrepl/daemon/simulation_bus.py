"""The bus of a process as it plays in the simulator, wired as :mod:`synrepl.daemon.process_bus` does."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from synrepl.services.announcing.publish import Publisher
from synrepl.services.bus.attendant import Attendant
from synrepl.services.bus.bus import Bus, Ear
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.hearing import Hearing
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.bus.spokesman import Spokesman, speak_for_the_dead
from synrepl.services.bus.voice import Spoken, Voice
from synrepl.services.writing.announced_elsewhere import AnnouncedElsewhere
from synrepl.services.writing.settled import Settled
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.rows import RowCodec
from synrepl.testing.simulator.parts import BusPlace, Place, Watch

SERVER_NAME = "simulated.example"


def publisher_of(place: Place) -> Publisher:
    """What makes lines of moves in a process."""
    return Publisher(place.life, codecs(place.catalogue))


@cache
def codecs(catalogue: Catalogue) -> dict[str, RowCodec]:
    """One codec per stream: they are costly to make, and the same for all processes."""
    return {stream.name: RowCodec(stream) for stream in catalogue}


class SimulatedBus:
    """A process's place on the bus.

    :param spoken: the writers that it speaks for, whose moves ``publisher`` gets
    :param hears: the names of the streams that ``ear`` follows
    """

    def __init__(
        self,
        place: Place,
        bus: BusPlace,
        name: str,
        publisher: Publisher,
        spoken: Spoken,
        ear: Ear,
        hears: Collection[str] = (),
        follows_itself: bool = False,
    ) -> None:
        channels = Channels(SERVER_NAME, bus.per_stream)
        self.voice = Voice(publisher, channels, spoken)
        streams = [stream.name for stream in place.catalogue]
        hearing = Hearing(name, place.log, follows_itself)
        self._bus = Bus(channels, streams, hearing, ear, self.voice)
        self._pubsub = bus.join(channels.heard(hears, user_ip=False), self._bus)

    @property
    def standing(self) -> bool:
        """True while the bus can be heard and spoken to."""
        return self._bus.standing

    def start(self) -> None:
        """Join."""
        self._pubsub.start()

    async def stop(self) -> None:
        """Leave."""
        await self._pubsub.stop()


class SimulatedMasterBus:
    """A master's place: it speaks for whoever cannot.

    :ivar spokesman: to be told of all movements
    """

    def __init__(self, place: Place, bus: BusPlace, name: str) -> None:
        publisher = publisher_of(place)
        self.spokesman = Spokesman(name, publisher)
        self._life = place.life
        ear = Attendant(lambda command: None)
        self._place = SimulatedBus(place, bus, name, publisher, self.spokesman, ear)

    def start(self) -> None:
        """Join, and look out for the dead."""
        self._place.start()
        look = speak_for_the_dead(self._life, self.spokesman, self._place.voice)
        self._life.spawn("speak for the dead", look)

    async def stop(self) -> None:
        """Leave."""
        await self._place.stop()


class SimulatedVoice:
    """What a process that writes announces of that: it itself on the bus, the master over TCP.

    :ivar settled: for its writer
    """

    def __init__(self, place: Place, name: str, watch: Watch) -> None:
        self.settled: Settled = AnnouncedElsewhere()
        self._place = place
        self._name = name
        self._spoken: tuple[BusPlace, Publisher, OwnWriter] | None = None
        if place.bus is not None:
            publisher = publisher_of(place)
            self.settled = own = OwnWriter(watch(publisher))
            self._spoken = place.bus, publisher, own

    def bus(self, follower: Ear | None = None) -> SimulatedBus | None:
        """The process's place on the bus, if it has one.

        :param follower: hears all streams; by default nothing is followed
        """
        if self._spoken is None:
            return None
        bus, publisher, own = self._spoken
        ear = Attendant(lambda command: None) if follower is None else follower
        hears = [] if follower is None else [stream.name for stream in self._place.catalogue]
        return SimulatedBus(self._place, bus, self._name, publisher, own, ear, hears, True)
