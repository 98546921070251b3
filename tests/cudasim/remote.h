/* remote.h - messages between emulated processes: remote.cpp carries them, nccl.cpp reads them. */
#ifndef CUDASIM_REMOTE_H
#define CUDASIM_REMOTE_H
#include <string>

enum RemoteWhat { R_JOIN, R_SPLIT, R_COLLECTIVE, R_MESSAGE };
struct RemoteHead {
    char comm[96];                      // the communicator's name
    int what, from;                     // from: rank in it
    uint64_t number, bytes;             // bytes of data behind it
    int kind, type, op, peer;           // of a call; SPLIT: color, key in kind, type
    uint64_t count;
};
struct RemoteMail { RemoteHead head; std::string data; };

bool remote_on();                       // CUDASIM_PROCESSES=1: each rank is a process
// This process is `rank` of the world `world`; it can be sent to from here on.
void remote_open(const std::string &world, int rank);
// Returns at once; in the order of calls to each process.
void remote_send(const std::string &world, int process, RemoteHead head, const void *data);
// What came, with big_lock held; null: not yet. Taken once it is read.
RemoteMail *remote_mail(const std::string &comm, int what, uint64_t number, int from);
void remote_forget(const std::string &comm, int what, uint64_t number, int from);
#endif
