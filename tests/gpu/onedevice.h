/*
 * onedevice.h - the calls of NCCL that a generated program makes, under other names: those of
 * onedevice.cu. Included in front of program.cu by the compiler's option -include.
 */
#ifndef ONEDEVICE_H
#define ONEDEVICE_H

#define ncclGetErrorString  one_ncclGetErrorString
#define ncclGetUniqueId     one_ncclGetUniqueId
#define ncclCommInitRank    one_ncclCommInitRank
#define ncclCommSplit       one_ncclCommSplit
#define ncclCommDestroy     one_ncclCommDestroy
#define ncclAllGather       one_ncclAllGather
#define ncclReduceScatter   one_ncclReduceScatter
#define ncclAllReduce       one_ncclAllReduce
#define ncclReduce          one_ncclReduce
#define ncclBroadcast       one_ncclBroadcast
#define ncclSend            one_ncclSend
#define ncclRecv            one_ncclRecv
#define ncclGroupStart      one_ncclGroupStart
#define ncclGroupEnd        one_ncclGroupEnd

#include <nccl.h>

#endif
