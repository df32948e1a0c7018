/* A libnvidia-ml.so.1 for tests: answers what a scenario file says. Ours; no NVIDIA code.
 *
 * The file is named by NVML_STANDIN_SCENARIO and is read when the library is loaded:
 *
 *   option <name> <value>              driver, nvml, cuda, time, start_us, samples_clock, ...
 *   call <symbol|*> [gpu=N] [code=N] [latency_us=N] [from=S] [until=S] [after=N] [times=N] [count=N]
 *   gpu <index>                        what follows belongs to this GPU
 *   text <name> <value...>             name, uuid, pci
 *   curve <name> <hold|line|rate|list> [period=S] [wrap=N] [start=N] [type=N] : t v t v ...
 *   process <compute|graphics|mps> <pid|self> <bytes|na> [from=S] [until=S] [sm=N] [mem=N] [gi=N] [ci=N]
 *   mig <parent> <gi> <ci>             this GPU is a MIG device of <parent>
 *   xid <t> <code>                     a critical error at t
 *
 * Times are seconds since the start. What a GPU has no curve for is NVML_ERROR_NOT_SUPPORTED.
 * curve kinds: hold = the value lasts until the next point; line = interpolated; rate = a counter
 * that grows by the (held) value per second; list = the points are the driver's own samples.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdint.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, NO_DATA = 21, VERSION_MISMATCH = 25,
};

#define MAX_GPUS 64
#define EXPORT __attribute__((visibility("default")))

struct curve {
    char name[40];
    char kind; /* 'h', 'l', 'r', 's' (list of samples) */
    double period, wrap, start;
    int type; /* NVML value type of a field: 0 double, 1 unsigned, 3 unsigned long long */
    int points;
    double *t, *v;
};

struct text { char name[24]; char value[128]; };

struct process {
    int kind; /* 'c', 'g', 'm' */
    unsigned pid; /* 0 = the calling process */
    uint64_t bytes;
    double from, until;
    unsigned sm, mem, gi, ci;
};

struct xid { double t; unsigned code; };

struct gpu {
    int index, mig_parent; /* -1: a whole GPU */
    unsigned gi, ci;
    int curves, texts, processes, xids;
    struct curve *curve;
    struct text *text;
    struct process *process;
    struct xid *xid;
};

struct rule {
    char symbol[64]; /* "*" = every call; "field:<id>", "gpm:<id>" = one value of a batch */
    int gpu, code;   /* gpu -1 = any; code -1 = only delays */
    double from, until;
    long latency_us, after, times, seen;
    long count; /* for symbols with a count: what is said instead of the truth; -1 = the truth */
};

/* One exported function: how often it was called. */
struct symbol { const char *name; long calls; int listed; struct symbol *next; };

typedef struct gpu *device;

/* scenario.c */
int scenario_load(const char *path);
const char *option(const char *name, const char *otherwise);
double option_number(const char *name, double otherwise);
int gpu_count(void);               /* whole GPUs */
struct gpu *gpu_at(int position);  /* whole GPUs, then MIG devices, in file order */
int gpus_total(void);
struct rule *rules(int *count);
const char *gpu_text(const struct gpu *gpu, const char *name);
const struct curve *gpu_curve(const struct gpu *gpu, const char *name);
double curve_at(const struct curve *curve, double t);
double curve_mean(const struct curve *curve, double from, double to);
int gpu_value(const struct gpu *gpu, const char *name, double *value); /* 1 = there is one */

/* batches.c */
extern long gpm_live; /* GPM samples allocated and not freed */

/* calls.c */
double now_s(void);       /* seconds since the start of the scenario */
int64_t now_wall_us(void);
int64_t stamp_us(double t); /* a scenario time as the driver would stamp it */
int enter(struct symbol *symbol, struct gpu *gpu); /* counts, delays; a code other than 0: return it */
int value_code(const char *what, struct gpu *gpu); /* the code a rule gives one value of a batch */
long scripted_count(const char *symbol, struct gpu *gpu); /* -1 = the truth */
struct gpu *known(device handle);
void started(int by);

#define ENTER_SYSTEM()                                   \
    do {                                                 \
        static struct symbol self = {__func__, 0, 0, 0};    \
        int code = enter(&self, 0);                      \
        if (code) return code;                           \
    } while (0)

#define ENTER(handle)                                    \
    do {                                                 \
        static struct symbol self = {__func__, 0, 0, 0};    \
        if (!known(handle)) return INVALID_ARGUMENT;     \
        int code = enter(&self, handle);                 \
        if (code) return code;                           \
    } while (0)

#endif
