import numpy as np,time,sys,os
from numba import njit
a=np.ones(2048,np.float32);b=np.ones(2048,np.float32)
@njit(fastmath=True)
def f(n,a,b):
    s=np.float32(0)
    for r in range(n):
        for i in range(a.size): s+=a[i]*b[i]*np.float32(r)
    return s
f(1,a,b)
best=9;worst=0
for _ in range(12):
    t=time.process_time(); f(1000000,a,b); d=time.process_time()-t; best=min(best,d); worst=max(worst,d)
print("best",round(best,4),"worst",round(worst,4))
