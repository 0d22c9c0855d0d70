import sys, time
from simulator.federation.sending_simulation import SendingSimulation
a,b=int(sys.argv[1]),int(sys.argv[2])
from synrepl.testing import postgres
bad=0
for seed in range(a,b):
    t=time.time()
    try:
        SendingSimulation(seed).run()
        print(seed,"ok",round(time.time()-t,1),flush=True)
    except AssertionError as e:
        bad+=1
        print(seed,"FAIL",str(e)[:700], str(e)[-1500:],flush=True)
        if bad>2: break
