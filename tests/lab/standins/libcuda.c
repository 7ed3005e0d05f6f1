/* Copyright (c) 2026, The tandem.spark contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for libcuda.so.1 on a virtual Spark: enough of the driver API to ask what the GPU is, nothing to run on it.
 * Values are those reported for GB10 (reference: hardware, 1.6). An attribute without a record answers
 * CUDA_ERROR_INVALID_VALUE, as the real library does for numbers it does not know, rather than an invented figure.
 * Only old, stable libc symbols are used: the file may be compiled on a newer machine than the guest.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct {
    char bytes[16];
} CUuuid;

#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_NO_DEVICE 100
#define CUDA_ERROR_INVALID_DEVICE 101
#define CUDA_ERROR_SYSTEM_DRIVER_MISMATCH 803

#define DRIVER_API 13000
#define TOTAL_MEMORY 128452014080UL
#define NAME "NVIDIA GB10"
#define BUS_ID "000F:01:00.0"

static int initialised;

static const struct {
    int attribute, value;
} attributes[] = {
    {10, 32},      /* WARP_SIZE */
    {13, 3003000}, /* CLOCK_RATE, kHz */
    {16, 48},      /* MULTIPROCESSOR_COUNT */
    {18, 1},       /* INTEGRATED */
    {19, 1},       /* CAN_MAP_HOST_MEMORY */
    {33, 1},       /* PCI_BUS_ID */
    {34, 0},       /* PCI_DEVICE_ID */
    {41, 1},       /* UNIFIED_ADDRESSING */
    {50, 15},      /* PCI_DOMAIN_ID */
    {75, 12},      /* COMPUTE_CAPABILITY_MAJOR */
    {76, 1},       /* COMPUTE_CAPABILITY_MINOR */
    {83, 1},       /* MANAGED_MEMORY */
    {86, 1},       /* HOST_NATIVE_ATOMIC_SUPPORTED */
    {88, 1},       /* PAGEABLE_MEMORY_ACCESS */
    {89, 1},       /* CONCURRENT_MANAGED_ACCESS */
    {97, 101376},  /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {100, 1},      /* PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES */
    {101, 0},      /* DIRECT_MANAGED_MEM_ACCESS_FROM_HOST */
    {102, 1},      /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {110, 0},      /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
    {116, 0},      /* GPU_DIRECT_RDMA_SUPPORTED */
    {124, 0},      /* DMA_BUF_SUPPORTED */
};

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
};

static int first_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "re");
    int found = file != NULL && fgets(line, size, file) != NULL;

    if (file != NULL)
        fclose(file);
    if (found)
        line[strcspn(line, "\r\n")] = '\0';
    return found;
}

/* The kernel module that is loaded and the library that is installed must be of one version. */
static int mismatched(void)
{
    char installed[64], loaded[256];

    if (!first_line("/etc/tandem-lab/driver_version", installed, (int)sizeof installed - 1) ||
        !first_line("/proc/driver/nvidia/version", loaded, sizeof loaded))
        return 0;
    strcat(installed, " ");
    return strstr(loaded, installed) == NULL;
}

CUresult cuInit(unsigned int flags)
{
    char gpu[16];

    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (first_line("/etc/tandem-lab/gpu", gpu, sizeof gpu) && strcmp(gpu, "absent") == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (mismatched())
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    initialised = 1;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_API;
    return CUDA_SUCCESS;
}

static CUresult check(const void *result, CUdevice device)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return result == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = check(count, 0);

    if (result == CUDA_SUCCESS)
        *count = 1;
    return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = check(device, ordinal);

    if (result == CUDA_SUCCESS)
        *device = 0;
    return result;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    CUresult result = check(name, device);

    if (result == CUDA_SUCCESS && size > 0) {
        strncpy(name, NAME, (size_t)size);
        name[size - 1] = '\0';
    }
    return result;
}

CUresult cuDeviceGetPCIBusId(char *bus_id, int size, CUdevice device)
{
    CUresult result = check(bus_id, device);

    if (result == CUDA_SUCCESS && size < (int)sizeof BUS_ID)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        strcpy(bus_id, BUS_ID);
    return result;
}

static int hex(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : 0;
}

/* The node's machine id serves as the GPU's UUID: stable, and different on each node (nvidia-smi does the same). */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = check(uuid, device);
    char line[64];
    int i;

    if (result != CUDA_SUCCESS)
        return result;
    memset(uuid, 0, sizeof *uuid);
    if (first_line("/etc/machine-id", line, sizeof line) && strlen(line) == 32)
        for (i = 0; i < 16; i++)
            uuid->bytes[i] = (char)(hex(line[2 * i]) * 16 + hex(line[2 * i + 1]));
    return result;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult result = check(major != NULL ? minor : NULL, device);

    if (result == CUDA_SUCCESS) {
        *major = 12;
        *minor = 1;
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = check(bytes, device);

    if (result == CUDA_SUCCESS)
        *bytes = TOTAL_MEMORY;
    return result;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult result = check(value, device);
    size_t i;

    if (result != CUDA_SUCCESS)
        return result;
    for (i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) {
            *value = attributes[i].value;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult describe(CUresult code, const char **answer, int want_name)
{
    size_t i;

    if (answer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *answer = want_name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    *answer = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    return describe(code, name, 1);
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    return describe(code, text, 0);
}
