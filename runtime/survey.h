/*
 * survey.h - what a cluster does in a second, without a model: the programs that `teracube
 * profile CLUSTER -o DIR` emits call it, on GPUs (templates/cuda/profile.cu) and on cores
 * (survey_cpu.c). Every rank goes through the same list of measurements in the same order;
 * rank 0 takes all figures, writes a profile (compiler/profile.h) and names what is slow.
 *
 *   products     m x n x k, forms AB, ABt, AtB, precisions that the machine has
 *   memory       streams y = s x, by bytes; the time to start a kernel
 *   collectives  by kind, size of the group, distance of its members in ranks, and how many
 *                groups of a node are at it at once (they share its ports)
 *   messages     from a rank to another one so many ranks away
 *
 * Ranks are numbered node by node. Seconds are those of one call.
 */
#ifndef SURVEY_H
#define SURVEY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SURVEY_FP32, SURVEY_FP64, SURVEY_BF16, SURVEY_PRECISIONS };
enum { SURVEY_NN, SURVEY_NT, SURVEY_TN, SURVEY_FORMS };
enum { SURVEY_GATHER, SURVEY_SUM, SURVEY_ALL, SURVEY_SEND, SURVEY_RINGS };

/* What is to be measured: the cluster as described. */
typedef struct {
    const char *cluster;
    int nodes, per_node, ports;
    bool quick;                     // no profile: only what names slow nodes
    bool tiny;                      // sizes for a test of the program itself
    const char *out;                // the profile
    const char *exe;
} SurveyTask;

enum { SURVEY_NAME = 64 };

/* Ranks of a group: `size` of them, `stride` apart; of a node's groups `sharing` are at work.
 * A block of size * stride ranks has `stride` groups. */
typedef struct { int size, stride, sharing; } SurveyGroup;

/*
 * One rank of the machine. Seconds: 0 where the machine does not have it, negative where it
 * failed and said why. Collectives are called by every rank, also by those that are not
 * at work (they get 0): see survey_active.
 */
typedef struct {
    void *ctx;
    int rank, ranks;
    bool is_device;                 // a GPU: what a rank does is done by all of it
    int cores;                      // of a rank that is no device
    double bytes;                   // memory of a device; of a node of cores
    char host[SURVEY_NAME], kind[2 * SURVEY_NAME], isa[SURVEY_NAME], library[2 * SURVEY_NAME];
    double (*product)(void *ctx, int precision, int form, int64_t m, int64_t n, int64_t k,
                      bool busy);
    double (*stream)(void *ctx, int64_t bytes, bool busy);
    double (*start)(void *ctx, bool busy);
    /* bytes: that a rank receives */
    double (*collective)(void *ctx, int kind, const SurveyGroup *g, int64_t bytes);
    /* This rank and its partner, so many ranks apart, exchange `bytes`, each way; partner -1:
     * it has none and looks on. */
    double (*exchange)(void *ctx, int partner, int apart, int64_t bytes);
    /* Everyone's bytes to rank 0: all [ranks * bytes], by rank. false: told. */
    bool   (*collect)(void *ctx, const void *mine, void *all, size_t bytes);
} SurveyMachine;

/* Is rank r at work in a group, and which one is it (its lowest rank; -1: none)? */
int  survey_group(const SurveyTask *t, const SurveyGroup *g, int r);
bool survey_active(const SurveyTask *t, const SurveyGroup *g, int r);

/* Options of the command line of the emitted programs: --quick --tiny -o FILE; others are
 * left to `more` (NULL: refused), which returns how many words it took. The exit status, or -1. */
int survey_options(SurveyTask *t, int argc, char **argv, int (*more)(void *, int, char **),
                   void *ctx);
/* The whole of an emitted program for cores; survey_cpu.c. */
int survey_cpu(SurveyTask t, int argc, char **argv);
/* Measures; the exit status. On every rank. */
int survey_run(const SurveyTask *t, const SurveyMachine *m);

/* seconds = alpha + bytes / rate by relative error; mean and worst of it. */
typedef struct { double alpha, rate, mean, worst; } SurveyFit;
SurveyFit survey_fit(const double *bytes, const double *seconds, int n);

#endif
