/* The scenario file: parsing it and asking its curves. */
#include "standin.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct text *options;
static int n_options;
static struct gpu gpu_list[MAX_GPUS];
static int n_gpus;
static struct rule *rule_list;
static int n_rules;

static void *grow(void *list, int count, size_t size) {
    return (count & (count - 1)) == 0 ? realloc(list, (count ? 2 * (size_t)count : 1) * size) : list;
}

static double number(const char *words, const char *key, double otherwise) {
    const char *at = words;
    size_t length = strlen(key);
    while ((at = strstr(at, key)) != 0) {
        if ((at == words || at[-1] == ' ') && at[length] == '=') return strtod(at + length + 1, 0);
        at += length;
    }
    return otherwise;
}

static void parse_curve(struct gpu *gpu, char *words) {
    char name[40], kind[8];
    char *points = strchr(words, ':');
    while (points && points[1] != ' ') points = strchr(points + 1, ':'); /* ids have ':' too */
    if (!points || sscanf(words, "%39s %7s", name, kind) != 2) return;
    *points++ = 0;
    gpu->curve = grow(gpu->curve, gpu->curves, sizeof *gpu->curve);
    struct curve *curve = &gpu->curve[gpu->curves++];
    memset(curve, 0, sizeof *curve);
    strcpy(curve->name, name);
    curve->kind = !strcmp(kind, "list") ? 's' : kind[0];
    curve->period = number(words, "period", 0);
    curve->wrap = number(words, "wrap", 0);
    curve->start = number(words, "start", 0);
    curve->type = (int)number(words, "type", 3);
    for (char *end = points;; points = end) {
        double t = strtod(points, &end);
        if (end == points) break;
        double v = strtod(points = end, &end);
        curve->t = grow(curve->t, curve->points, sizeof(double));
        curve->v = grow(curve->v, curve->points, sizeof(double));
        curve->t[curve->points] = t;
        curve->v[curve->points++] = v;
    }
}

static void parse_process(struct gpu *gpu, const char *words) {
    char kind[16], pid[16], bytes[32];
    if (sscanf(words, "%15s %15s %31s", kind, pid, bytes) != 3) return;
    gpu->process = grow(gpu->process, gpu->processes, sizeof *gpu->process);
    struct process *process = &gpu->process[gpu->processes++];
    process->kind = kind[0];
    process->pid = strcmp(pid, "self") ? (unsigned)strtoul(pid, 0, 10) : 0;
    process->bytes = strcmp(bytes, "na") ? strtoull(bytes, 0, 10) : UINT64_MAX;
    process->from = number(words, "from", -1e18);
    process->until = number(words, "until", 1e18);
    process->sm = (unsigned)number(words, "sm", 0);
    process->mem = (unsigned)number(words, "mem", 0);
    process->gi = (unsigned)number(words, "gi", 0xFFFFFFFFu);
    process->ci = (unsigned)number(words, "ci", 0xFFFFFFFFu);
}

static void parse_call(const char *words) {
    rule_list = grow(rule_list, n_rules, sizeof *rule_list);
    struct rule *rule = &rule_list[n_rules++];
    memset(rule, 0, sizeof *rule);
    sscanf(words, "%63s", rule->symbol);
    rule->gpu = (int)number(words, "gpu", -1);
    rule->code = (int)number(words, "code", -1);
    rule->latency_us = (long)number(words, "latency_us", 0);
    rule->from = number(words, "from", -1e18);
    rule->until = number(words, "until", 1e18);
    rule->after = (long)number(words, "after", 0);
    rule->times = (long)number(words, "times", 1e15);
    rule->count = (long)number(words, "count", -1);
}

static void parse_text(struct text **list, int *count, const char *words) {
    *list = grow(*list, *count, sizeof **list);
    struct text *text = &(*list)[(*count)++];
    memset(text, 0, sizeof *text);
    sscanf(words, "%23s %127[^\n]", text->name, text->value);
}

int scenario_load(const char *path) {
    FILE *file = path ? fopen(path, "r") : 0;
    if (!file) return 0;
    n_options = n_gpus = n_rules = 0;
    options = 0, rule_list = 0; /* old ones may still be read by another thread: left alone */
    memset(gpu_list, 0, sizeof gpu_list);
    char *line = 0;
    size_t size = 0;
    struct gpu *gpu = 0;
    while (getline(&line, &size, file) > 0) {
        char word[16];
        int used = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%15s %n", word, &used) < 1 || word[0] == '#') continue;
        char *rest = line + used;
        if (!strcmp(word, "option")) parse_text(&options, &n_options, rest);
        else if (!strcmp(word, "call")) parse_call(rest);
        else if (!strcmp(word, "gpu") && n_gpus < MAX_GPUS) {
            gpu = &gpu_list[n_gpus++];
            gpu->index = atoi(rest);
            gpu->mig_parent = -1;
            gpu->gi = gpu->ci = 0xFFFFFFFFu;
        } else if (!gpu) continue;
        else if (!strcmp(word, "text")) parse_text(&gpu->text, &gpu->texts, rest);
        else if (!strcmp(word, "curve")) parse_curve(gpu, rest);
        else if (!strcmp(word, "process")) parse_process(gpu, rest);
        else if (!strcmp(word, "mig")) sscanf(rest, "%d %u %u", &gpu->mig_parent, &gpu->gi, &gpu->ci);
        else if (!strcmp(word, "xid")) {
            gpu->xid = grow(gpu->xid, gpu->xids, sizeof *gpu->xid);
            sscanf(rest, "%lf %u", &gpu->xid[gpu->xids].t, &gpu->xid[gpu->xids].code);
            gpu->xids++;
        }
    }
    free(line);
    fclose(file);
    return 1;
}

const char *option(const char *name, const char *otherwise) {
    for (int i = 0; i < n_options; i++)
        if (!strcmp(options[i].name, name)) return options[i].value;
    return otherwise;
}

double option_number(const char *name, double otherwise) {
    const char *value = option(name, 0);
    return value ? strtod(value, 0) : otherwise;
}

int gpus_total(void) { return n_gpus; }

int gpu_count(void) {
    int count = 0;
    for (int i = 0; i < n_gpus; i++) count += gpu_list[i].mig_parent < 0;
    return count;
}

struct gpu *gpu_at(int position) { return &gpu_list[position]; }

struct rule *rules(int *count) {
    *count = n_rules;
    return rule_list;
}

const char *gpu_text(const struct gpu *gpu, const char *name) {
    for (int i = 0; i < gpu->texts; i++)
        if (!strcmp(gpu->text[i].name, name)) return gpu->text[i].value;
    return 0;
}

const struct curve *gpu_curve(const struct gpu *gpu, const char *name) {
    for (int i = 0; i < gpu->curves; i++)
        if (!strcmp(gpu->curve[i].name, name)) return &gpu->curve[i];
    return 0;
}

static double within(const struct curve *curve, double t) {
    return curve->period > 0 && t >= 0 ? fmod(t, curve->period) : t;
}

static double shape(const struct curve *curve, double t) {
    if (curve->points == 0) return 0;
    int i = 0;
    while (i + 1 < curve->points && curve->t[i + 1] <= t) i++;
    if (curve->kind != 'l' || i + 1 >= curve->points || t <= curve->t[i]) return curve->v[i];
    double part = (t - curve->t[i]) / (curve->t[i + 1] - curve->t[i]);
    return curve->v[i] + part * (curve->v[i + 1] - curve->v[i]);
}

/* Integral of the shape over [0, t], t within one period. */
static double grown(const struct curve *curve, double t) {
    double sum = 0;
    for (int i = 0; i < curve->points; i++) {
        double from = i ? curve->t[i] : 0, to = i + 1 < curve->points ? curve->t[i + 1] : t;
        if (from < 0) from = 0;
        if (to > t) to = t;
        if (to <= from) continue;
        sum += (to - from) * (curve->kind == 'l' ? (shape(curve, from) + shape(curve, to)) / 2
                                                 : curve->v[i]);
    }
    return sum;
}

static double integral(const struct curve *curve, double t) {
    if (t <= 0) return 0;
    if (curve->period <= 0) return grown(curve, t);
    double whole = floor(t / curve->period);
    return whole * grown(curve, curve->period) + grown(curve, t - whole * curve->period);
}

double curve_at(const struct curve *curve, double t) {
    if (curve->kind != 'r') return shape(curve, within(curve, t));
    double value = curve->start + integral(curve, t);
    return curve->wrap > 0 ? fmod(value, curve->wrap) : value;
}

double curve_mean(const struct curve *curve, double from, double to) {
    if (to <= from || from < 0) return curve_at(curve, to);
    return (integral(curve, to) - integral(curve, from)) / (to - from);
}

int gpu_value(const struct gpu *gpu, const char *name, double *value) {
    const struct curve *curve = gpu_curve(gpu, name);
    if (curve) *value = curve_at(curve, now_s());
    return curve != 0;
}
