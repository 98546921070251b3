teracube-profile 7
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
product fp32 nn busy 256 1024 1024 4e+10
stream 65536 4e+10 4e+10
stream 268435456 1e+10 5e+09
ring send 2 2 1e-06 5e+09 0 0
ring_point 1024 1.2048e-06
ring all_gather 2 2 1e-06 5e+09 0 0
ring_point 1024 1.2048e-06
checksum 684da7f06aa8abde
