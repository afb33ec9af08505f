/* The small cache of the demo's tests: three layers of two heads, four blocks, on a software device. */
#ifndef ENGINE_DEMO_DEMO_TESTING_H
#define ENGINE_DEMO_DEMO_TESTING_H

#include <assert.h>
#include <stdlib.h>

#include "core/device/software.h"
#include "core/testing/cunit.h"
#include "engine/demo/demo.h"

enum { HL_DEMO_TESTING_PAGES = 4, HL_DEMO_TESTING_LAYERS = 3 };

/* A demo with its geometry and an entered software device, and nothing allocated. */
static inline hl_demo *hl_demo_testing_open(enum hl_layout_kind layout, uint64_t seed)
{
    hl_demo *demo = calloc(1, sizeof *demo);
    assert(demo);
    demo->options = (struct hl_demo_options){.layout = layout,
                                             .layout_given = true,
                                             .pages = HL_DEMO_TESTING_PAGES,
                                             .page_tokens = 4,
                                             .tp_size = 1,
                                             .part_bytes = 4096,
                                             .runs = 1,
                                             .seed = seed};
    demo->geometry = (struct hl_model_geometry){.name = "small",
                                                .layers = HL_DEMO_TESTING_LAYERS,
                                                .kv_heads = 2,
                                                .head_dim = 8,
                                                .value_head_dim = 8,
                                                .element_bytes = 2};
    hl_error err;
    HL_REQUIRE_OK(hl_device_open_software(&demo->dev, &err), err);
    assert(demo->dev);
    HL_REQUIRE_OK(hl_device_enter(demo->dev, &err), err);
    return demo;
}

/* Closes it in any state, and asserts that nothing stays on the device. */
static inline void hl_demo_testing_close(hl_demo *demo)
{
    hl_device *dev = demo->dev;
    hl_demo_close(demo);
    struct hl_software_counts counts;
    hl_software_counts(dev, &counts);
    CU_ASSERT_EQUAL(counts.allocations, 0);
    CU_ASSERT_EQUAL(counts.registrations, 0);
    CU_ASSERT_EQUAL(counts.streams, 0);
    CU_ASSERT_EQUAL(counts.events, 0);
    hl_device_leave(dev);
    hl_device_close(dev);
    free(demo);
}

#endif
