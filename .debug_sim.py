import sys
from simulator.federation.sending_simulation import SendingSimulation
from simulator.federation import receiving_server
from simulator.federation.receiving_server import ReceivingServer
seed=int(sys.argv[1])
sim=SendingSimulation(seed)
w=sim.world
orig=ReceivingServer._receive
from simulator.clock import EPOCH
log=[]
async def recv(self, request):
    ids=[self._event_id_of(e) for e in request.body.get("pdus",[])]
    nxt=self.next[0] if self.next else self.otherwise
    idx=[w.owed[self.name].index(i) if i in w.owed[self.name] else '?' for i in ids]
    log.append((round(w.clock.seconds()-EPOCH,3), self.name, request.path[0], idx, len(request.body.get("edus",[])), str(nxt)))
    return await orig(self, request)
ReceivingServer._receive=recv
import simulator.federation.sending_world as sw
o2=sw.SendingWorld.close
try:
    sim.run()
    print("ok")
except AssertionError as e:
    s=str(e)
    print(s[:300]); 
    name=s.split()[0]
    for l in log:
        if l[1]==name: print(l)
    print("\n".join(x for x in w.transcript.lines() if "persist" not in x)[-int(sys.argv[2]) if len(sys.argv)>2 else -6000:])
