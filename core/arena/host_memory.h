/* What this machine can give an arena: the CPUs of a NUMA node, free huge pages, and how much memory can be
 * populated before the kernel would kill somebody for it. Read from sysfs, procfs and the cgroup's files
 * below `root`: "" in production; a test gives a folder with a made-up machine. */
#ifndef CORE_ARENA_HOST_MEMORY_H
#define CORE_ARENA_HOST_MEMORY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena/arena.h"

/* Highest node number that the kernel can have (MAX_NUMNODES is at most 1024), plus one. */
#define HL_HOST_NODES 1024

uint64_t hl_host_page_bytes(enum hl_page_size pages);

/* Whether `node` exists. A kernel without NUMA has node 0 only. */
bool hl_host_has_node(const char *root, int node);

/* CPUs of `node` (-1: of any) that this thread may run on; all that it may run on when the node has none of
 * them. Empty when the kernel does not say. */
void hl_host_node_cpus(const char *root, int node, cpu_set_t *cpus);

/* Huge pages of this size on `node` (-1: on any) that are neither used nor promised to another mapping. */
uint64_t hl_host_free_huge_pages(const char *root, uint64_t page_bytes, int node);

/* Bytes of regular memory on `node` (-1: on any) that can be had, page cache that can be dropped included,
 * and within this process's cgroup (version 2) limits. UINT64_MAX when nothing says. It is a reading, not a
 * reservation. */
uint64_t hl_host_available_bytes(const char *root, int node);

#endif
