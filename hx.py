import time, numpy as np, sys
from numba import njit
from hubmerge.compiled.adapters import INNER
from hubmerge.compiled.vector_loops import *
from hubmerge.compiled import counts as C
from hubmerge.compiled.layout import *
O=dict(INNER); 
for k in ('no_cpython_wrapper',): O.pop(k)
rng=np.random.default_rng(0)
import os
K=3;n=int(os.environ.get("N","4096"))
base=(rng.standard_normal(n,dtype=np.float32)*0.02)
b16=(base.view(np.uint32)>>16).astype(np.uint16)
raw=np.zeros((4,n+112),np.uint16); raw[0,:n]=b16
for k,d in enumerate((.032,.462,.543)):
    m=rng.random(n)<d; raw[k+1,:n]=b16+m*rng.integers(1,3,n)
base=np.zeros(n+112,np.float32); base[:n]=(b16.astype(np.uint32)<<16).view(np.float32)
W=n+112
deltas=np.zeros((K,W),np.float32); active=np.zeros((K,n//64),np.uint64); positive=active.copy(); exactly=np.zeros((K+1,n//64),np.uint64)
kept=np.zeros((K,2,W),np.uint32); found=np.zeros((K,4),np.int64); spare=np.zeros(W,np.float32); out=np.zeros(16); 
short=np.zeros((K,COPIES,SHORT),np.uint32); packed=np.zeros((K,COPIES,1<<14),np.uint64)
delta=np.zeros(W,np.float32); step=np.zeros(W,np.float32); exact=np.zeros(W,np.float32);out16=np.zeros(n,np.uint16); cnt=np.zeros(3,np.int64)
alone=np.zeros(64,np.uint64); shared=alone.copy()
raw32=np.zeros((0,0),np.float32)
R=3000*4096//n
@njit(**O)
def t_decode(R):
    for r in range(R): C._decode(raw_,raw32_,False,0,0,n_,n_,base_)
def bench(name,f,*a):
    f(10,*a); best=9
    for _ in range(7):
        t=time.process_time(); f(R,*a); best=min(best,time.process_time()-t)
    print(f"{name:28s} {best/R/n*1e9:6.3f} ns/el")
@njit(**O)
def decode(R,raw,raw32,base):
    for r in range(R): C._decode(raw,raw32,False,0,0,n,n,base)
@njit(**O)
def split(R,base,raw,deltas,active,positive,kept,found):
    for r in range(R):
        for k in range(K): split_bf16(base,raw[k+1],0,n,np.float32(1e-5),deltas[k],active[k],positive[k],kept[k,0],kept[k,1],found[k])
@njit(**O)
def magn(R,kept,found,short,packed):
    for r in range(R):
        for k in range(K): C._count_magnitudes(kept[k],found[k],short[k],packed[k])
@njit(**O)
def over(R,active,exactly):
    for r in range(R): C.overlaps(active,n//64,exactly)
@njit(**O)
def insums(R,d,out):
    s=0.0
    for r in range(R):
        for k in range(K):
            powers(d[k],n,out); s+=out[0]
            for o in range(k+1,K): s+=dot(d[k],d[o],n)
    return s
@njit(**O)
def regs(R,d,active,exactly,alone,shared,delta,step,out):
    s=0.0
    for r in range(R):
        for k in range(K):
            for w in range(n//64):
                alone[w]=active[k,w]&exactly[1,w]; shared[w]=active[k,w]&~exactly[1,w]
            regions(d[k],alone,shared,delta,step,n,out); s+=out[0]
    return s
@njit(**O)
def fin(R,base,delta,out16,exact,step,cnt):
    for r in range(R): finish_bf16(base,delta,n,out16,exact,step,cnt)
bench("decode",decode,raw,raw32,base)
bench("split",split,base,raw,deltas,active,positive,kept,found)
bench("magnitudes",magn,kept,found,short,packed)
bench("overlaps",over,active,exactly)
bench("insums",insums,deltas,out)
delta[:]=deltas.sum(0)
bench("regions",regs,deltas,active,exactly,alone,shared,delta,step,out)
bench("finish",fin,base,delta,out16,exact,step,cnt)
print("--- new")
import hubmerge.compiled.difference_loops as D, hubmerge.compiled.sum_loops as S
from hubmerge.compiled.difference_loops import *
from hubmerge.compiled.sum_loops import powers_1,powers_2,powers_3,regions_1,regions_2,regions_3
from hubmerge.compiled.sum_loops import dot as ndot
rows=np.array([raw[i].ctypes.data for i in range(4)],np.uint64)
nshort=np.zeros((K,W),np.uint16); nlong=np.zeros((K,W),np.uint32); b2=np.zeros(W,np.float32); d2=np.zeros((K,W),np.float32); a2=np.zeros((K,n//64),np.uint64); p2=a2.copy(); f2=found.copy()*0
@njit(**O)
def nsplit(R,rows,base,deltas,active,positive,short,long,found):
    for r in range(R): split_bf16_3(rows,0,0,n,np.float32(1e-5),base,deltas,active,positive,short,long,found)
@njit(**O)
def nsplit1(R,rows,base,deltas,active,positive,short,long,found):
    for r in range(R):
        for k in range(3): split_bf16_1(rows,k,0,n,np.float32(1e-5),base,deltas,active,positive,short,long,found)
@njit(**O)
def nmag(R,kept,found,short):
    for r in range(R):
        for k in range(K):
            place=kept[k]; count=found[k,0]; whole=count-count%COPIES
            for i in range(0,whole,COPIES):
                for c in range(COPIES): short[k,c,place[i+c]]+=np.uint32(1)
@njit(**O)
def npow(R,d,out):
    for r in range(R): powers_3(d,0,n,out)
@njit(**O)
def npow12(R,d,out):
    for r in range(R):
        powers_2(d,0,n,out); powers_1(d,2,n,out); ndot(d,0,2,n); ndot(d,1,2,n)
@njit(**O)
def nreg(R,d,active,exactly,delta,step,out):
    for r in range(R): regions_3(d,0,active,exactly[1],delta,step,n,out)
@njit(**O)
def nreg1(R,d,active,exactly,delta,step,out):
    for r in range(R):
        for k in range(3): regions_1(d,k,active,exactly[1],delta,step,n,out)
bench("split3",nsplit,rows,b2,d2,a2,p2,nshort,nlong,f2)
assert (d2==deltas).all() and (a2==active).all() and (p2==positive).all() and (f2==found).all(),(f2,found)
for k in range(K): assert (nshort[k,:f2[k,0]]==(kept[k,0,:f2[k,0]]>>16)).all()
bench("split1x3",nsplit1,rows,b2,d2,a2,p2,nshort,nlong,f2)
bench("magn16",nmag,nshort,f2,short)
out=np.zeros(32)
bench("powers3",npow,deltas,out)
bench("powers21",npow12,deltas,out)
bench("regions3",nreg,deltas,active,exactly,delta,step,out)
bench("regions1x3",nreg1,deltas,active,exactly,delta,step,out)
bench("split3 again",nsplit,rows,b2,d2,a2,p2,nshort,nlong,f2)
@njit(**O)
def nreg21(R,d,active,exactly,delta,step,out):
    for r in range(R):
        regions_2(d,0,active,exactly[1],delta,step,n,out); regions_1(d,2,active,exactly[1],delta,step,n,out)
bench("regions21",nreg21,deltas,active,exactly,delta,step,out)
asm=list(nreg1.inspect_asm().values())[0]
open('/tmp/fuse_reg1.s','w').write(asm)
open('/tmp/fuse_split3.s','w').write(list(nsplit.inspect_asm().values())[0])
