/* Two copies to the same bytes with nothing between them: under the validation layers they must say so (SYNC-HAZARD), or they do not look.
   Run by tests/check_vulkan.sh. */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/vulkan/fg_vulkan.h"

static fg_result copy_twice(fg__vk_device *d, const fg__vk_range *to) {
    fg__vk_copy copy;
    fg_result r = fg__vk_work_begin(d, &d->copies);
    int i;
    if (r != FG_OK) return r;
    copy.from = d->staging.offset;
    copy.to = to->offset;
    copy.bytes = 256;
    for (i = 0; i < 2; i++) d->api.CmdCopyBuffer(d->copies.commands, d->staging.chunk->buffer, to->chunk->buffer, 1, &copy);
    if ((r = fg__vk_work_end(d, &d->copies)) == FG_OK) r = fg__vk_work_wait(d, &d->copies);
    return r;
}

int main(void) {
    fg_vulkan_options options;
    fg_device_desc desc;
    fg_device *device = NULL;
    void *memory;
    fg_result r;
    memset(&options, 0, sizeof(options));
    memset(&desc, 0, sizeof(desc));
    options.off = ~0u;
    desc.options = &options;
    if (fg_backend_vulkan()->open(&desc, &device) != FG_OK) {
        fprintf(stderr, "%s\n", fg_last_error());
        return 1;
    }
    memory = fg_backend_vulkan()->alloc(device, 4096);
    r = memory ? copy_twice((fg__vk_device *)(void *)device, (const fg__vk_range *)memory) : FG_ERROR_OUT_OF_MEMORY;
    fg_backend_vulkan()->free(device, memory);
    fg_backend_vulkan()->close(device);
    return r != FG_OK;
}
