/* libFuzzer target: what a peer can send. The first input byte chooses the decoder; the rest is its input, in
 * an allocation of its own size. FUZZ_FRAMED_* and FUZZ_SIZED_* put right what a peer can put right too
 * (magic, sizes, counts), so that the checks behind are reached. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/channel/channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum choice {
    FUZZ_MESSAGE,
    FUZZ_BINDING,
    FUZZ_RESTORE,
    FUZZ_EXTENT,
    FUZZ_FRAMED_MESSAGE,
    FUZZ_SIZED_BINDING,
    FUZZ_SIZED_RESTORE,
    FUZZ_CHOICES
};

/* What is accepted must be what the header promises. */
static void require(bool holds)
{
    if (!holds)
        abort();
}

static void use_message(const struct hl_packet *packet)
{
    enum hl_message_kind kind = HL_MESSAGE_NONE;
    hl_error err = {.text = ""};
    hl_status status = hl_message_check(packet, &kind, &err);
    require(status == HL_OK || status == HL_E_PROTOCOL || status == HL_E_VERSION);
    require(status == HL_OK ? packet->size == hl_message_bytes(kind) : err.text[0] != '\0');
    if (status == HL_OK && kind == HL_MESSAGE_HELLO)
        hl_hello_check((const struct hl_hello *)(const void *)packet->bytes, &err);
    if (status == HL_OK && kind == HL_MESSAGE_ERROR)
        require(hl_error_message_read((const struct hl_error_message *)(const void *)packet->bytes, &err) <
                0);
}

static void fuzz_message(const uint8_t *data, size_t size, bool framed)
{
    struct hl_packet packet = {.size = size < HL_MESSAGE_BYTES ? size : HL_MESSAGE_BYTES};
    struct hl_message *head = (struct hl_message *)(void *)packet.bytes;
    memcpy(packet.bytes, data, packet.size);
    packet.fd_count = size > 4 ? data[4] % (HL_MESSAGE_FDS + 1) : 0; /* a byte that framing overwrites */
    if (framed) {
        uint32_t sequence = head->sequence;
        hl_message_head(head, (enum hl_message_kind)(1 + head->magic % (HL_MESSAGE_KIND_COUNT - 1)),
                        sequence);
        packet.size = head->bytes;
    }
    use_message(&packet);
}

static void fuzz_binding(unsigned char *bytes, size_t size, bool sized)
{
    struct hl_wire_binding head, *raw = (struct hl_wire_binding *)(void *)bytes;
    const struct hl_wire_tensor *tensors;
    hl_layout *layout;
    hl_error err;
    if (sized && size >= sizeof *raw) { /* as many tensors as said, and what is left as components */
        size_t rest = size - sizeof *raw;
        raw->tensor_count = 1 + raw->tensor_count % 4;
        size_t tensor_bytes = raw->tensor_count * sizeof *tensors;
        if (rest >= tensor_bytes) {
            raw->component_count = (uint32_t)((rest - tensor_bytes) / sizeof(struct hl_layout_component));
            size = hl_wire_binding_bytes(raw->tensor_count, raw->component_count);
        }
    }
    if (hl_wire_binding_decode(bytes, size, &head, &tensors, &layout, &err) != HL_OK)
        return;
    require(hl_layout_validate(layout, &err) == HL_OK);
    size_t length = 0;
    for (uint32_t i = 0; i < head.tensor_count; i++)
        length += strlen(tensors[i].tensor.name);
    unsigned char *again = malloc(size);
    require(length < size && again &&
            hl_wire_binding_encode(&head, tensors, layout->components, again, size, &err) == HL_OK &&
            memcmp(again, bytes, size) == 0); /* one meaning, one encoding */
    free(again);
    hl_layout_free(layout);
}

static void fuzz_restore(unsigned char *bytes, size_t size, bool sized)
{
    struct hl_wire_restore head, *raw = (struct hl_wire_restore *)(void *)bytes;
    const uint32_t *pages;
    uint64_t count, sum = 0;
    hl_error err;
    if (sized && size >= sizeof *raw) {
        raw->lease_count = 1 + raw->lease_count % 3;
        memset(&raw->leases[raw->lease_count], 0,
               (HL_RESTORE_LEASES - raw->lease_count) * sizeof raw->leases[0]);
        raw->leases[0].page_count = (uint32_t)((size - sizeof *raw) / sizeof *pages);
        for (uint32_t i = 1; i < raw->lease_count; i++)
            raw->leases[0].page_count -= raw->leases[i].page_count %= 4;
    }
    if (hl_wire_restore_decode(bytes, size, &head, &pages, &count, &err) != HL_OK)
        return;
    for (uint64_t i = 0; i < count; i++)
        sum += pages[i];
    unsigned char *again = malloc(size);
    require(again && sum <= count * UINT32_MAX &&
            hl_wire_restore_encode(&head, pages, count, again, size, &err) == HL_OK &&
            memcmp(again, bytes, size) == 0);
    free(again);
}

static void fuzz_extent(const uint8_t *data, size_t size)
{
    static hl_descriptors *descriptors;
    struct hl_extent extent;
    void *copy;
    hl_error err;
    if (size < sizeof extent || (!descriptors && hl_descriptors_create(&descriptors, &err) != HL_OK))
        return;
    memcpy(&extent, data, sizeof extent);
    if (hl_descriptors_copy(descriptors, extent, HL_MIB, &copy, &err) != HL_OK)
        return;
    require(hl_descriptors_write(descriptors, extent, copy, extent.bytes, &err) == HL_OK);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    unsigned choice = data[0] % FUZZ_CHOICES;
    data++;
    size--;
    unsigned char *bytes = malloc(size + 1); /* + 1: never 0 */
    if (!bytes)
        return 0;
    memcpy(bytes, data, size);
    switch ((enum choice)choice) {
    case FUZZ_MESSAGE:
    case FUZZ_FRAMED_MESSAGE:
        fuzz_message(bytes, size, choice == FUZZ_FRAMED_MESSAGE);
        break;
    case FUZZ_BINDING:
    case FUZZ_SIZED_BINDING:
        fuzz_binding(bytes, size, choice == FUZZ_SIZED_BINDING);
        break;
    case FUZZ_RESTORE:
    case FUZZ_SIZED_RESTORE:
        fuzz_restore(bytes, size, choice == FUZZ_SIZED_RESTORE);
        break;
    case FUZZ_EXTENT:
        fuzz_extent(bytes, size);
        break;
    case FUZZ_CHOICES:
        break;
    }
    free(bytes);
    return 0;
}
