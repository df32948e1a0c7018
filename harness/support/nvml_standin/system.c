/* Starting, versions, finding devices. */
#include "abi.h"
#include "standin.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int copy(const char *text, char *out, unsigned size) {
    if (!text) return NOT_SUPPORTED;
    if (!out) return INVALID_ARGUMENT;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER_SYSTEM();
    started(1);
    return OK;
}
EXPORT int nvmlInit_v2(void) {
    ENTER_SYSTEM();
    started(1);
    return OK;
}
EXPORT int nvmlInit(void) {
    ENTER_SYSTEM();
    started(1);
    return OK;
}
EXPORT int nvmlShutdown(void) {
    ENTER_SYSTEM();
    started(-1);
    return OK;
}

EXPORT const char *nvmlErrorString(int code) {
    static const struct { int code; const char *text; } words[] = {
        {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
        {4, "Insufficient Permissions"}, {6, "Not Found"}, {7, "Insufficient Size"},
        {9, "Driver Not Loaded"}, {10, "Timeout"}, {12, "NVML Shared Library Not Found"},
        {13, "Function Not Found"}, {15, "GPU is lost"}, {16, "GPU requires reset"},
        {18, "Driver/library version mismatch"}, {21, "No data"}, {999, "Unknown Error"},
    };
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].code == code) return words[i].text;
    return "Some error";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER_SYSTEM();
    return copy(option("driver", "580.95.05"), out, size);
}
EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    ENTER_SYSTEM();
    return copy(option("nvml", "13.580.95.05"), out, size);
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *out) {
    ENTER_SYSTEM();
    *out = (int)option_number("cuda", 13000);
    return OK;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER_SYSTEM();
    *out = (int)option_number("cuda", 13000);
    return OK;
}
EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    ENTER_SYSTEM();
    char name[32];
    snprintf(name, sizeof name, "process-%u", pid);
    return copy(name, out, size);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER_SYSTEM();
    *out = (unsigned)gpu_count();
    return OK;
}
EXPORT int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    static struct symbol self = {"nvmlDeviceGetHandleByIndex_v2", 0, 0, 0};
    struct gpu *found = 0;
    for (int i = 0; i < gpus_total(); i++)
        if (gpu_at(i)->mig_parent < 0 && gpu_at(i)->index == (int)index) found = gpu_at(i);
    int code = enter(&self, found);
    if (code || !found) return code ? code : INVALID_ARGUMENT;
    *out = found;
    return OK;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, device *out) {
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    ENTER_SYSTEM();
    for (int i = 0; uuid && i < gpus_total(); i++) {
        const char *own = gpu_text(gpu_at(i), "uuid");
        if (own && !strcasecmp(own, uuid)) return *out = gpu_at(i), OK;
    }
    return NOT_FOUND;
}

static int pci_numbers(const char *text, unsigned n[4]) {
    n[0] = n[3] = 0;
    return text && (sscanf(text, "%x:%x:%x.%x", &n[0], &n[1], &n[2], &n[3]) >= 3);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, device *out) {
    ENTER_SYSTEM();
    unsigned wanted[4], own[4];
    if (!pci_numbers(pci, wanted)) return INVALID_ARGUMENT;
    for (int i = 0; i < gpus_total(); i++)
        if (gpu_at(i)->mig_parent < 0 && pci_numbers(gpu_text(gpu_at(i), "pci"), own) &&
            !memcmp(own, wanted, sizeof own))
            return *out = gpu_at(i), OK;
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetPciInfo_v3(device gpu, struct pci_info *out) {
    ENTER(gpu);
    const char *text = gpu_text(gpu, "pci");
    unsigned n[4];
    if (!pci_numbers(text, n)) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->domain = n[0], out->bus = n[1], out->slot = n[2];
    snprintf(out->id, sizeof out->id, "%08X:%02X:%02X.0", n[0] & 0xffffffffu, n[1] & 0xff, n[2] & 0xff);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", n[0] & 0xffff, n[1] & 0xff,
             n[2] & 0xff);
    return OK;
}

EXPORT int nvmlDeviceGetName(device gpu, char *out, unsigned size) {
    ENTER(gpu);
    return copy(gpu_text(gpu, "name"), out, size);
}
EXPORT int nvmlDeviceGetUUID(device gpu, char *out, unsigned size) {
    ENTER(gpu);
    return copy(gpu_text(gpu, "uuid"), out, size);
}
EXPORT int nvmlDeviceGetSerial(device gpu, char *out, unsigned size) {
    ENTER(gpu);
    return copy(gpu_text(gpu, "serial"), out, size);
}
EXPORT int nvmlDeviceGetIndex(device gpu, unsigned *out) {
    ENTER(gpu);
    if (gpu->mig_parent >= 0) return NOT_SUPPORTED;
    *out = (unsigned)gpu->index;
    return OK;
}

/* MIG */
EXPORT int nvmlDeviceGetMigMode(device gpu, unsigned *current, unsigned *pending) {
    ENTER(gpu);
    double mode;
    if (gpu->mig_parent >= 0 || !gpu_value(gpu, "mig_mode", &mode)) return NOT_SUPPORTED;
    *current = *pending = (unsigned)mode;
    return OK;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(device gpu, unsigned *out) {
    ENTER(gpu);
    double mode;
    *out = gpu_value(gpu, "mig_mode", &mode) ? 7 : 0;
    return OK;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *out) {
    ENTER(gpu);
    unsigned seen = 0;
    for (int i = 0; i < gpus_total(); i++)
        if (gpu_at(i)->mig_parent == gpu->index && gpu->mig_parent < 0 && seen++ == index)
            return *out = gpu_at(i), OK;
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device gpu, device *out) {
    ENTER(gpu);
    for (int i = 0; i < gpus_total(); i++)
        if (gpu_at(i)->mig_parent < 0 && gpu_at(i)->index == gpu->mig_parent)
            return *out = gpu_at(i), OK;
    return NOT_FOUND;
}
EXPORT int nvmlDeviceIsMigDeviceHandle(device gpu, unsigned *out) {
    ENTER(gpu);
    *out = gpu->mig_parent >= 0;
    return OK;
}
EXPORT int nvmlDeviceGetGpuInstanceId(device gpu, unsigned *out) {
    ENTER(gpu);
    *out = gpu->gi;
    return gpu->mig_parent < 0 ? NOT_SUPPORTED : OK;
}
EXPORT int nvmlDeviceGetComputeInstanceId(device gpu, unsigned *out) {
    ENTER(gpu);
    *out = gpu->ci;
    return gpu->mig_parent < 0 ? NOT_SUPPORTED : OK;
}
