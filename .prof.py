import cProfile,pstats,time
from simulator.federation.sending_world import SendingWorld
t=time.time(); w=SendingWorld(); print("world",time.time()-t); w.close()
t=time.time(); w=SendingWorld(); print("world",time.time()-t)
t=time.time(); room=w.room("room",["one","two"]); w.until(lambda: w.is_quiet); print("room",time.time()-t)
p=cProfile.Profile(); p.enable()
t=time.time(); w.run(100.0); print("run 100",time.time()-t)
p.disable()
pstats.Stats(p).sort_stats("cumtime").print_stats(18)
t=time.time(); w.close(); print("close", time.time()-t)
