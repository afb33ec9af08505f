#include "core/transfer/route.h"

#include <string.h>

#include "core/base/error.h"

/* What hl_calibrate() finds on one H200 behind PCIe 5.0 x16, driver 580, rounded: a copy call costs 2.7 us of
 * the host whatever its size. A copy of a batch costs 0.45 us of the host, of which little shows while the
 * device is busy with 32 KiB copies, and all with small ones. Strided copies run at the link's ceiling. The
 * gather kernel with bulk copies reaches 51.4 GB/s on 4 blocks and needs 6 us to follow another launch. */
static const struct hl_route_model h200_model = {
    .copy = {.call_ns = 0, .piece_ns = 2700, .bytes_per_second = 55.5e9},
    .rows = {.call_ns = 2500, .piece_ns = 2, .bytes_per_second = 55.5e9},
    .batch = {.call_ns = 2500,
              .piece_ns = 250,
              .bytes_per_second = 55.5e9,
              .small_bytes = 16 * HL_KIB,
              .small_piece_ns = 600},
    .kernel = {.call_ns = 6000, .piece_ns = 5, .bytes_per_second = 51.4e9},
};

/* Without bulk copies a thread block moves about 6.4 GB/s of 32 KiB pieces, until the link is full. */
#define LOADS_BYTES_PER_SECOND_A_BLOCK 6.4e9

/* The software device copies with the same memcpy on every route; only the calls differ. */
static const struct hl_route_model software_model = {
    .copy = {.call_ns = 0, .piece_ns = 1000, .bytes_per_second = 5e9},
    .rows = {.call_ns = 1000, .piece_ns = 50, .bytes_per_second = 5e9},
    .batch = {.call_ns = 1000, .piece_ns = 100, .bytes_per_second = 5e9},
    .kernel = {.call_ns = 2000, .piece_ns = 1000, .bytes_per_second = 4e9},
};

void hl_route_default_model(const struct hl_device_info *info, uint32_t blocks, struct hl_route_model *model)
{
    *model = info->kind == HL_DEVICE_SOFTWARE ? software_model : h200_model;
    if (info->kind == HL_DEVICE_CUDA && !info->bulk_copy) {
        double bytes_per_second = LOADS_BYTES_PER_SECOND_A_BLOCK * blocks;
        if (bytes_per_second < model->kernel.bytes_per_second)
            model->kernel.bytes_per_second = bytes_per_second;
    }
}

/* What goes one way, added up: the price of a sum of pieces needs no division a piece. */
struct tally {
    const struct hl_route_cost *cost;
    uint64_t pieces;
    uint64_t small; /* of these, at most small_bytes long */
    uint64_t bytes;
};

static void add(struct tally *tally, uint64_t pieces, uint64_t piece_bytes)
{
    tally->pieces += pieces;
    tally->small += piece_bytes <= tally->cost->small_bytes ? pieces : 0;
    tally->bytes += pieces * piece_bytes;
}

static double price(const struct tally *tally, uint64_t calls)
{
    const struct hl_route_cost *cost = tally->cost;
    return (double)calls * cost->call_ns + (double)tally->small * cost->small_piece_ns +
           (double)(tally->pieces - tally->small) * cost->piece_ns +
           (double)tally->bytes * 1e9 / cost->bytes_per_second;
}

static double price_alone(const struct hl_route_cost *cost, uint64_t calls, uint64_t pieces,
                          uint64_t piece_bytes)
{
    struct tally tally = {.cost = cost};
    add(&tally, pieces, piece_bytes);
    return price(&tally, calls);
}

double hl_route_ns(const struct hl_route_cost *cost, uint64_t pieces, uint64_t piece_bytes)
{
    return price_alone(cost, 1, pieces, piece_bytes);
}

bool hl_route_strided(const struct hl_route_model *model, const struct hl_work_run *run)
{
    if (run->src_pitch > HL_ROUTE_MAX_PITCH || run->dst_pitch > HL_ROUTE_MAX_PITCH)
        return false;
    double strided = price_alone(&model->rows, 1, run->rows, run->row_bytes);
    return strided <= price_alone(&model->batch, 0, run->rows, run->row_bytes) &&
           strided <= price_alone(&model->copy, 0, run->rows, run->row_bytes);
}

/* A layer, as each way would take it. */
struct layer_prices {
    struct tally single; /* every piece that is not strided, a call each */
    struct tally batch;  /* the same pieces in batches */
    struct tally kernel; /* the whole layer, in descriptors */
    double strided;
};

static void add_pieces(struct layer_prices *prices, uint64_t count, uint64_t bytes)
{
    add(&prices->single, count, bytes);
    add(&prices->batch, count, bytes);
}

/* Longer pieces are cut. */
static void add_descriptors(struct layer_prices *prices, uint64_t count, uint64_t bytes)
{
    if (bytes > HL_ROUTE_DESCRIPTOR_BYTES) {
        add(&prices->kernel, count * (bytes / HL_ROUTE_DESCRIPTOR_BYTES), HL_ROUTE_DESCRIPTOR_BYTES);
        bytes %= HL_ROUTE_DESCRIPTOR_BYTES;
    }
    if (bytes > 0)
        add(&prices->kernel, count, bytes);
}

static struct layer_prices price_layer(const struct hl_route_model *model, const struct hl_work *work,
                                       const struct hl_work_layer *layer)
{
    struct layer_prices prices = {
        .single.cost = &model->copy, .batch.cost = &model->batch, .kernel.cost = &model->kernel};
    for (uint32_t i = 0; i < layer->range_count; i++) {
        uint64_t bytes = work->ranges[layer->first_range + i].bytes;
        add_pieces(&prices, 1, bytes);
        add_descriptors(&prices, 1, bytes);
    }
    for (uint32_t i = 0; i < layer->run_count; i++) {
        const struct hl_work_run *run = &work->runs[layer->first_run + i];
        if (hl_route_strided(model, run))
            prices.strided += price_alone(&model->rows, 1, run->rows, run->row_bytes);
        else
            add_pieces(&prices, run->rows, run->row_bytes);
        add_descriptors(&prices, run->rows, run->row_bytes);
    }
    return prices;
}

struct hl_route_choice hl_route_choose(const struct hl_route_model *model, enum hl_route wanted,
                                       const struct hl_work *work, const struct hl_work_layer *layer)
{
    if (wanted == HL_ROUTE_KERNEL)
        return (struct hl_route_choice){.route = HL_ROUTE_KERNEL};
    struct layer_prices prices = price_layer(model, work, layer);
    uint64_t batches = (prices.batch.pieces + HL_ROUTE_BATCH_COPIES - 1) / HL_ROUTE_BATCH_COPIES;
    double single = price(&prices.single, prices.single.pieces > 0), batch = price(&prices.batch, batches);
    double direct = prices.strided + (batch < single ? batch : single);
    if (wanted == HL_ROUTE_AUTO && price(&prices.kernel, 1) < direct)
        return (struct hl_route_choice){.route = HL_ROUTE_KERNEL};
    return (struct hl_route_choice){.route = HL_ROUTE_DIRECT, .batch = batch < single};
}

static const char *const route_names[] = {
    [HL_ROUTE_AUTO] = "auto", [HL_ROUTE_DIRECT] = "direct", [HL_ROUTE_KERNEL] = "kernel"};

const char *hl_route_name(enum hl_route route)
{
    return (unsigned)route < sizeof route_names / sizeof route_names[0] ? route_names[route] : "unknown";
}

hl_status hl_route_parse(const char *name, enum hl_route *route, hl_error *err)
{
    for (unsigned i = 0; name && i < sizeof route_names / sizeof route_names[0]; i++)
        if (!strcmp(name, route_names[i])) {
            *route = (enum hl_route)i;
            return HL_OK;
        }
    return HL_FAIL(err, HL_E_INVALID, "transfer.route", "route %s is not auto, direct or kernel",
                   name ? name : "(null)");
}
