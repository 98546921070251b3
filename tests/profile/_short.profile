teracube-profile 1
cpu Made Up 9000
cores 4
isa none
memory 8000000000
load 0.00
blas none
step 1e-07 1e-06
product fp32 nn alone 1 32 32 1e+09
product fp32 nn alone 1 32 1024 1e+09
product fp32 nn alone 1 1024 32 1e+09
product fp32 nn alone 1 1024 1024 1e+09
product fp32 nn alone 256 32 32 5e+10
product fp32 nn alone 256 32 1024 5e+10
product fp32 nn alone 256 1024 32 5e+10
product fp32 nn alone 256 1024 1024 5e+10
product fp32 nn busy 1 32 32 1e+09
product fp32 nn busy 1 32 1024 1e+09
product fp32 nn busy 1 1024 32 1e+09
product fp32 nn busy 1 1024 1024 1e+09
product fp32 nn busy 256 32 32 4e+10
product fp32 nn busy 256 32 1024 4e+10
product fp32 nn busy 256 1024 32 4e+10
product fp32 nn b