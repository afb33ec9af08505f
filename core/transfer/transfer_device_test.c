/* A device in front of the software device: any call that opening makes can be refused, and the gather kernel
 * claims bulk copies, which the software device has not, and checks what it is given for them. */
#include "core/transfer/transfer_testing.h"

static struct hl_device_ops front; /* the software device's table with some calls replaced */
static const struct hl_device_ops *behind;
static uint64_t refuse_nth;              /* the n-th replaced call from now fails; 0: none */
static unsigned launches[2], misaligned; /* by method */

static hl_status refuse(hl_error *err)
{
    if (refuse_nth && --refuse_nth == 0)
        return HL_FAIL_DEVICE(err, HL_E_DEVICE, "test.front", 999, "refused, as the test asked");
    return HL_OK;
}

static hl_status front_mem_alloc(hl_device *dev, size_t bytes, hl_devptr *ptr, hl_error *err)
{
    hl_status status = refuse(err);
    return status ? status : behind->mem_alloc(dev, bytes, ptr, err);
}

static hl_status front_host_register(hl_device *dev, void *ptr, size_t bytes, hl_error *err)
{
    hl_status status = refuse(err);
    return status ? status : behind->host_register(dev, ptr, bytes, err);
}

static hl_status front_host_pointer(hl_device *dev, void *ptr, hl_devptr *mapped, hl_error *err)
{
    hl_status status = refuse(err);
    return status ? status : behind->host_pointer(dev, ptr, mapped, err);
}

static hl_status front_stream_create(hl_device *dev, hl_stream *stream, hl_error *err)
{
    hl_status status = refuse(err);
    return status ? status : behind->stream_create(dev, stream, err);
}

static hl_status front_event_create(hl_device *dev, unsigned flags, hl_event *event, hl_error *err)
{
    hl_status status = refuse(err);
    return status ? status : behind->event_create(dev, flags, event, err);
}

static hl_status front_event_elapsed(hl_device *dev, hl_event start, hl_event end, int64_t *ns, hl_error *err)
{
    hl_status status = refuse(err);
    return status ? status : behind->event_elapsed(dev, start, end, ns, err);
}

/* Descriptors are in host memory here, which the software device maps where it is. */
static hl_status front_gather(hl_device *dev, const struct hl_gather_launch *launch, hl_stream stream,
                              hl_error *err)
{
    const struct hl_gather *pieces = (const struct hl_gather *)(uintptr_t)launch->descriptors;
    struct hl_gather_launch loads = *launch;
    launches[launch->method]++;
    for (uint32_t i = 0; launch->method == HL_GATHER_BULK && i < launch->count; i++)
        misaligned += (pieces[i].dst | pieces[i].src | pieces[i].bytes) % 16 != 0;
    loads.method = HL_GATHER_LOADS;
    return behind->gather(dev, &loads, stream, err);
}

static void put_in_front(hl_device *dev)
{
    behind = dev->ops;
    front = *behind;
    front.mem_alloc = front_mem_alloc;
    front.host_register = front_host_register;
    front.host_pointer = front_host_pointer;
    front.stream_create = front_stream_create;
    front.event_create = front_event_create;
    front.event_elapsed = front_event_elapsed;
    front.gather = front_gather;
    refuse_nth = 0;
    launches[0] = launches[1] = misaligned = 0;
    dev->ops = &front;
}

static void every_refused_call_of_opening_leaves_nothing(void)
{
    hl_error err = {0};
    hl_device *dev = NULL;
    hl_transfer *transfer = NULL;
    struct hl_tensor_binding tensor = {.base = 4096, .bytes = 4096};
    HL_REQUIRE_OK(hl_device_open_software(&dev, &err), err);
    put_in_front(dev);
    struct hl_transfer_options options = {
        .dev = dev, .tensors = &tensor, .tensor_count = 1, .layers = 1, .calibrate = true};
    uint64_t nth = 1;
    for (;; nth++) {
        struct hl_software_counts counts;
        refuse_nth = nth;
        if (hl_transfer_open_with_ring(&options, 3, 64, &transfer, &err) == HL_OK)
            break;
        CU_ASSERT_EQUAL(err.device_code, 999);
        CU_ASSERT_PTR_NULL(transfer);
        hl_software_counts(dev, &counts);
        CU_ASSERT_EQUAL(counts.streams + counts.events + counts.registrations + counts.allocations, 0);
    }
    CU_ASSERT_TRUE(nth >
                   12); /* stream, ready event, ring of three segments, scratch, timing events, timings */
    hl_transfer_close(transfer);
    hl_device_close(dev);
}

static void a_start_without_an_event_leaves_nothing(void)
{
    hl_error err = {0};
    hl_operation *operation = NULL;
    struct rig rig;
    rig_open(&rig,
             &(struct rig_options){
                 .shape = {.layers = 1, .pages = 2, .blocks = 2, .tokens = 1, .row_bytes = 64, .groups = 1},
                 .seed = 8,
                 .software = true});
    put_in_front(rig.dev);
    rig_open_transfer(&rig, HL_ROUTE_AUTO);
    rig_compile(&rig, 1, 2, false, 0);
    struct hl_operation_options options = {.identity = rig.identity};
    uint64_t events = rig_counts(&rig).events;
    refuse_nth = 1;
    HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &operation, &err), HL_E_DEVICE, err);
    CU_ASSERT_EQUAL(err.device_code, 999);
    CU_ASSERT_PTR_NULL(operation);
    CU_ASSERT_EQUAL(rig_counts(&rig).events, events);
    rig_restore(&rig);
    rig_restore(&rig);
    CU_ASSERT_EQUAL(rig_counts(&rig).events,
                    events + 2); /* the two that say the operation's end, used again */
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    rig_close(&rig);
}

/* Where the device has bulk copies, aligned pieces go in launches of those and the others in launches of
 * plain loads. */
static void bulk_launches_hold_aligned_pieces_only(void)
{
    const uint32_t gaps[] = {0, 8}; /* no piece is unaligned; every other one is */
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t descriptors = 3; descriptors <= 192; descriptors *= 8) {
            struct rig rig;
            hl_error err = {0};
            rig_open(&rig, &(struct rig_options){.shape = {.layers = 3,
                                                           .pages = 5,
                                                           .blocks = 5,
                                                           .tokens = 2,
                                                           .row_bytes = 8192,
                                                           .groups = 1,
                                                           .tensors = RIG_CONTIGUOUS,
                                                           .gap = gaps[i]},
                                                 .seed = 8,
                                                 .software = true});
            put_in_front(rig.dev);
            rig.dev->info.bulk_copy = true;
            struct hl_transfer_options options = rig_transfer_options(&rig, HL_ROUTE_KERNEL);
            HL_REQUIRE_OK(hl_transfer_open_with_ring(&options, 2, descriptors, &rig.transfer, &err), err);
            rig_compile(&rig, 1, 5, false, 0);
            rig_restore(&rig);
            CU_ASSERT_TRUE(rig_tensors_match(&rig));
            CU_ASSERT_TRUE(launches[HL_GATHER_BULK] >= 1);
            CU_ASSERT_EQUAL(launches[HL_GATHER_LOADS] >= 3, gaps[i] != 0);
            CU_ASSERT_EQUAL(misaligned, 0);
            rig_close(&rig);
        }
}

static void small_pieces_go_by_loads(void)
{
    struct rig rig;
    rig_open(&rig, &(struct rig_options){.shape = {.layers = 3,
                                                   .pages = 15,
                                                   .blocks = 15,
                                                   .tokens = 2,
                                                   .row_bytes = 160,
                                                   .groups = 1,
                                                   .tensors = RIG_CONTIGUOUS},
                                         .seed = 8,
                                         .software = true});
    put_in_front(rig.dev);
    rig.dev->info.bulk_copy = true;
    rig_open_transfer(&rig, HL_ROUTE_KERNEL);
    rig_compile(&rig, 1, 15, false, 0);
    rig_restore(&rig);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    CU_ASSERT_EQUAL(launches[HL_GATHER_BULK], 0);
    CU_ASSERT_EQUAL(launches[HL_GATHER_LOADS], 1); /* the layers of a part share it */
    rig_close(&rig);
}

/* More layers than one launch can count, two of three without bytes. */
static void many_layers_take_several_launches(void)
{
    struct rig rig;
    rig_open(&rig, &(struct rig_options){.shape = {.layers = 2 * HL_GATHER_LAYERS,
                                                   .pages = 4,
                                                   .blocks = 4,
                                                   .tokens = 1,
                                                   .row_bytes = 64,
                                                   .groups = 3},
                                         .seed = 8,
                                         .software = true});
    put_in_front(rig.dev);
    rig_open_transfer(&rig, HL_ROUTE_KERNEL);
    for (uint32_t group = 0; group < 3; group++) {
        launches[HL_GATHER_LOADS] = 0;
        rig_compile(&rig, 1u << group, 4, false, 0);
        rig_restore(&rig);
        CU_ASSERT_EQUAL(launches[HL_GATHER_LOADS], 2);
    }
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    rig_close(&rig);
}

HL_TESTS(transfer_device, HL_CASE(small_pieces_go_by_loads), HL_CASE(many_layers_take_several_launches),
         HL_CASE(every_refused_call_of_opening_leaves_nothing),
         HL_CASE(a_start_without_an_event_leaves_nothing), HL_CASE(bulk_launches_hold_aligned_pieces_only));
