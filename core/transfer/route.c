#include "core/transfer/route.h"

#include <string.h>

#include "core/base/error.h"

/* Measured on one H200 behind PCIe 5.0 x16, driver 580: a copy call costs 3.0 to 4.7 us whatever its size, a
 * copy of a batch about 0.4 us beyond its bytes, but 2 to 3 us at and below 16 KiB; strided copies of 32 KiB
 * rows run at the ceiling of 55.5 GB/s; the gather kernel with bulk copies reaches 51.4 GB/s on 4 blocks. */
static const struct hl_route_model h200_model = {
    .copy = {.call_ns = 500, .piece_ns = 3100, .bytes_per_second = 55.5e9},
    .rows = {.call_ns = 4500, .piece_ns = 10, .bytes_per_second = 55.5e9},
    .batch = {.call_ns = 4500,
              .piece_ns = 400,
              .bytes_per_second = 55.5e9,
              .small_bytes = 16 * HL_KIB,
              .small_piece_ns = 2000},
    .kernel = {.call_ns = 5000, .piece_ns = 30, .bytes_per_second = 51.4e9},
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

/* What one piece adds to a call. */
static double piece_ns(const struct hl_route_cost *cost, uint64_t bytes)
{
    double fixed = bytes <= cost->small_bytes ? cost->small_piece_ns : cost->piece_ns;
    return fixed + (double)bytes * 1e9 / cost->bytes_per_second;
}

double hl_route_ns(const struct hl_route_cost *cost, uint64_t pieces, uint64_t piece_bytes)
{
    return cost->call_ns + (double)pieces * piece_ns(cost, piece_bytes);
}

bool hl_route_strided(const struct hl_route_model *model, const struct hl_work_run *run)
{
    if (run->src_pitch < run->row_bytes || run->dst_pitch < run->row_bytes ||
        run->src_pitch > HL_ROUTE_MAX_PITCH || run->dst_pitch > HL_ROUTE_MAX_PITCH)
        return false;
    double strided = hl_route_ns(&model->rows, run->rows, run->row_bytes);
    double batched = run->rows * piece_ns(&model->batch, run->row_bytes);
    double single = run->rows * piece_ns(&model->copy, run->row_bytes);
    return strided <= batched && strided <= single;
}

/* Prices of a layer, added up piece by piece. */
struct prices {
    double strided;  /* the runs that go as strided copies */
    double single;   /* every other piece, a call each */
    double batched;  /* the same pieces in batches */
    double kernel;   /* the whole layer */
    uint64_t pieces; /* not strided */
};

static void price_pieces(struct prices *prices, const struct hl_route_model *model, uint64_t count,
                         uint64_t bytes)
{
    prices->single += (double)count * piece_ns(&model->copy, bytes);
    prices->batched += (double)count * piece_ns(&model->batch, bytes);
    prices->pieces += count;
}

static void price_kernel(struct prices *prices, const struct hl_route_model *model, uint64_t count,
                         uint64_t bytes)
{
    uint64_t whole = bytes / HL_ROUTE_DESCRIPTOR_BYTES, rest = bytes % HL_ROUTE_DESCRIPTOR_BYTES;
    double each = (double)whole * piece_ns(&model->kernel, HL_ROUTE_DESCRIPTOR_BYTES);
    if (rest)
        each += piece_ns(&model->kernel, rest);
    prices->kernel += (double)count * each;
}

static struct prices price_layer(const struct hl_route_model *model, const struct hl_work *work,
                                 const struct hl_work_layer *layer)
{
    struct prices prices = {.kernel = model->kernel.call_ns};
    for (uint32_t i = 0; i < layer->range_count; i++) {
        uint64_t bytes = work->ranges[layer->first_range + i].bytes;
        price_pieces(&prices, model, 1, bytes);
        price_kernel(&prices, model, 1, bytes);
    }
    for (uint32_t i = 0; i < layer->run_count; i++) {
        const struct hl_work_run *run = &work->runs[layer->first_run + i];
        if (hl_route_strided(model, run))
            prices.strided += hl_route_ns(&model->rows, run->rows, run->row_bytes);
        else
            price_pieces(&prices, model, run->rows, run->row_bytes);
        price_kernel(&prices, model, run->rows, run->row_bytes);
    }
    if (prices.pieces > 0) {
        uint64_t calls = (prices.pieces + HL_TRANSFER_BATCH_COPIES - 1) / HL_TRANSFER_BATCH_COPIES;
        prices.single += model->copy.call_ns;
        prices.batched += (double)calls * model->batch.call_ns;
    }
    return prices;
}

struct hl_route_choice hl_route_choose(const struct hl_route_model *model, enum hl_route wanted,
                                       const struct hl_work *work, const struct hl_work_layer *layer)
{
    if (wanted == HL_ROUTE_KERNEL)
        return (struct hl_route_choice){.route = HL_ROUTE_KERNEL};
    struct prices prices = price_layer(model, work, layer);
    struct hl_route_choice choice = {.route = HL_ROUTE_DIRECT, .batch = prices.batched < prices.single};
    double direct = prices.strided + (choice.batch ? prices.batched : prices.single);
    if (wanted == HL_ROUTE_AUTO && prices.kernel < direct)
        choice = (struct hl_route_choice){.route = HL_ROUTE_KERNEL};
    return choice;
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
