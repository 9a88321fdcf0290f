import numpy as np,time
from numba import njit
@njit
def f(n):
    x=1
    for i in range(n): x=(x*3)^i
    return x
@njit
def g(n,x):
    for i in range(n): x=x*1.0000001
    return x
f(10);g(10,1.)
for _ in range(4):
    t=time.process_time(); f(200_000_000); d=time.process_time()-t; print("imul+xor 4 cycles ->",4/(d/2e8*1e9),"GHz",end=' ')
    t=time.process_time(); g(200_000_000,1.); d=time.process_time()-t; print("fmul 3 cycles ->",3/(d/2e8*1e9),"GHz")
