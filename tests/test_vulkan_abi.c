/* The Vulkan declarations of backends/vulkan/fg_vulkan.h against the official header (Debian: libvulkan-dev): sizes, the places
   of members, numbers. It compiles or it does not. */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/vulkan/fg_vulkan.h"

#include <vulkan/vulkan.h>

#define SAME(name, a, b) typedef char name[(a) == (b) ? 1 : -1]
#define SIZE(ours, theirs) SAME(size_##ours, sizeof(fg__vk_##ours), sizeof(theirs))
#define PLACE(ours, member, theirs, their_member) \
    SAME(place_##ours##_##member, offsetof(fg__vk_##ours, member), offsetof(theirs, their_member))
#define NUMBER(ours, theirs) SAME(number_##ours, (int64_t)FG__VK_##ours, (int64_t)(theirs))

SIZE(application_info, VkApplicationInfo);
PLACE(application_info, api_version, VkApplicationInfo, apiVersion);
SIZE(instance_info, VkInstanceCreateInfo);
PLACE(instance_info, layers, VkInstanceCreateInfo, ppEnabledLayerNames);
PLACE(instance_info, extensions, VkInstanceCreateInfo, ppEnabledExtensionNames);
SIZE(limits, VkPhysicalDeviceLimits);
PLACE(limits, max_storage_range, VkPhysicalDeviceLimits, maxStorageBufferRange);
PLACE(limits, stage_storage_buffers, VkPhysicalDeviceLimits, maxPerStageDescriptorStorageBuffers);
PLACE(limits, shared_bytes, VkPhysicalDeviceLimits, maxComputeSharedMemorySize);
PLACE(limits, max_groups, VkPhysicalDeviceLimits, maxComputeWorkGroupCount);
PLACE(limits, max_invocations, VkPhysicalDeviceLimits, maxComputeWorkGroupInvocations);
PLACE(limits, storage_alignment, VkPhysicalDeviceLimits, minStorageBufferOffsetAlignment);
SIZE(properties, VkPhysicalDeviceProperties2);
PLACE(properties, api_version, VkPhysicalDeviceProperties2, properties.apiVersion);
PLACE(properties, vendor, VkPhysicalDeviceProperties2, properties.vendorID);
PLACE(properties, device, VkPhysicalDeviceProperties2, properties.deviceID);
PLACE(properties, device_type, VkPhysicalDeviceProperties2, properties.deviceType);
PLACE(properties, name, VkPhysicalDeviceProperties2, properties.deviceName);
PLACE(properties, cache_uuid, VkPhysicalDeviceProperties2, properties.pipelineCacheUUID);
PLACE(properties, limits, VkPhysicalDeviceProperties2, properties.limits);
SIZE(subgroup_properties, VkPhysicalDeviceSubgroupProperties);
PLACE(subgroup_properties, size, VkPhysicalDeviceSubgroupProperties, subgroupSize);
PLACE(subgroup_properties, operations, VkPhysicalDeviceSubgroupProperties, supportedOperations);
SIZE(maintenance_3_properties, VkPhysicalDeviceMaintenance3Properties);
PLACE(maintenance_3_properties, max_allocation, VkPhysicalDeviceMaintenance3Properties, maxMemoryAllocationSize);
SIZE(memory_properties, VkPhysicalDeviceMemoryProperties2);
PLACE(memory_properties, types, VkPhysicalDeviceMemoryProperties2, memoryProperties.memoryTypes);
PLACE(memory_properties, heaps, VkPhysicalDeviceMemoryProperties2, memoryProperties.memoryHeaps);
SIZE(features, VkPhysicalDeviceFeatures2);
SIZE(half_features, VkPhysicalDeviceShaderFloat16Int8Features);
PLACE(half_features, half, VkPhysicalDeviceShaderFloat16Int8Features, shaderFloat16);
SIZE(storage_features, VkPhysicalDevice16BitStorageFeatures);
PLACE(storage_features, storage, VkPhysicalDevice16BitStorageFeatures, storageBuffer16BitAccess);
SIZE(dot_features, VkPhysicalDeviceShaderIntegerDotProductFeatures);
SIZE(dot_properties, VkPhysicalDeviceShaderIntegerDotProductProperties);
PLACE(dot_properties, packed_signed, VkPhysicalDeviceShaderIntegerDotProductProperties, integerDotProduct4x8BitPackedSignedAccelerated);
SIZE(model_features, VkPhysicalDeviceVulkanMemoryModelFeatures);
PLACE(model_features, model, VkPhysicalDeviceVulkanMemoryModelFeatures, vulkanMemoryModel);
SIZE(size_features, VkPhysicalDeviceSubgroupSizeControlFeatures);
PLACE(size_features, control, VkPhysicalDeviceSubgroupSizeControlFeatures, subgroupSizeControl);
PLACE(size_features, full, VkPhysicalDeviceSubgroupSizeControlFeatures, computeFullSubgroups);
SIZE(size_properties, VkPhysicalDeviceSubgroupSizeControlProperties);
PLACE(size_properties, min, VkPhysicalDeviceSubgroupSizeControlProperties, minSubgroupSize);
PLACE(size_properties, most_subgroups, VkPhysicalDeviceSubgroupSizeControlProperties, maxComputeWorkgroupSubgroups);
PLACE(size_properties, stages, VkPhysicalDeviceSubgroupSizeControlProperties, requiredSubgroupSizeStages);
SIZE(size_info, VkPipelineShaderStageRequiredSubgroupSizeCreateInfo);
#ifdef VK_KHR_cooperative_matrix /* not in Debian 12's header */
SIZE(matrix_features, VkPhysicalDeviceCooperativeMatrixFeaturesKHR);
PLACE(matrix_features, matrix, VkPhysicalDeviceCooperativeMatrixFeaturesKHR, cooperativeMatrix);
SIZE(matrix_shape, VkCooperativeMatrixPropertiesKHR);
PLACE(matrix_shape, m, VkCooperativeMatrixPropertiesKHR, MSize);
PLACE(matrix_shape, a, VkCooperativeMatrixPropertiesKHR, AType);
PLACE(matrix_shape, result, VkCooperativeMatrixPropertiesKHR, ResultType);
PLACE(matrix_shape, scope, VkCooperativeMatrixPropertiesKHR, scope);
NUMBER(MATRIX_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR);
NUMBER(MATRIX_SHAPE, VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR);
NUMBER(HALF_TYPE, VK_COMPONENT_TYPE_FLOAT16_KHR);
NUMBER(FLOAT_TYPE, VK_COMPONENT_TYPE_FLOAT32_KHR);
NUMBER(SUBGROUP_SCOPE, VK_SCOPE_SUBGROUP_KHR);
#endif
SIZE(budget_properties, VkPhysicalDeviceMemoryBudgetPropertiesEXT);
PLACE(budget_properties, usage, VkPhysicalDeviceMemoryBudgetPropertiesEXT, heapUsage);
SIZE(queue_properties, VkQueueFamilyProperties);
SIZE(extension, VkExtensionProperties);
SIZE(queue_info, VkDeviceQueueCreateInfo);
PLACE(queue_info, priorities, VkDeviceQueueCreateInfo, pQueuePriorities);
SIZE(device_info, VkDeviceCreateInfo);
PLACE(device_info, queues, VkDeviceCreateInfo, pQueueCreateInfos);
PLACE(device_info, extensions, VkDeviceCreateInfo, ppEnabledExtensionNames);
SIZE(buffer_info, VkBufferCreateInfo);
PLACE(buffer_info, usage, VkBufferCreateInfo, usage);
SIZE(requirements, VkMemoryRequirements);
SIZE(allocate_info, VkMemoryAllocateInfo);
SIZE(shader_info, VkShaderModuleCreateInfo);
PLACE(shader_info, code, VkShaderModuleCreateInfo, pCode);
SIZE(set_binding, VkDescriptorSetLayoutBinding);
SIZE(set_layout_info, VkDescriptorSetLayoutCreateInfo);
SIZE(push_range, VkPushConstantRange);
SIZE(pipeline_layout_info, VkPipelineLayoutCreateInfo);
PLACE(pipeline_layout_info, ranges, VkPipelineLayoutCreateInfo, pPushConstantRanges);
SIZE(cache_info, VkPipelineCacheCreateInfo);
SIZE(spec_entry, VkSpecializationMapEntry);
SIZE(spec_info, VkSpecializationInfo);
SIZE(stage_info, VkPipelineShaderStageCreateInfo);
PLACE(stage_info, module, VkPipelineShaderStageCreateInfo, module);
PLACE(stage_info, spec, VkPipelineShaderStageCreateInfo, pSpecializationInfo);
SIZE(pipeline_info, VkComputePipelineCreateInfo);
PLACE(pipeline_info, layout, VkComputePipelineCreateInfo, layout);
PLACE(pipeline_info, base_index, VkComputePipelineCreateInfo, basePipelineIndex);
SIZE(pool_size, VkDescriptorPoolSize);
SIZE(pool_info, VkDescriptorPoolCreateInfo);
SIZE(set_info, VkDescriptorSetAllocateInfo);
SIZE(buffer_range, VkDescriptorBufferInfo);
SIZE(write_info, VkWriteDescriptorSet);
PLACE(write_info, binding, VkWriteDescriptorSet, dstBinding);
PLACE(write_info, buffers, VkWriteDescriptorSet, pBufferInfo);
SIZE(command_pool_info, VkCommandPoolCreateInfo);
SIZE(command_info, VkCommandBufferAllocateInfo);
SIZE(begin_info, VkCommandBufferBeginInfo);
SIZE(barrier_info, VkMemoryBarrier);
SIZE(copy, VkBufferCopy);
SIZE(submit_info, VkSubmitInfo);
PLACE(submit_info, commands, VkSubmitInfo, pCommandBuffers);
SIZE(fence_info, VkFenceCreateInfo);
SIZE(semaphore_info, VkSemaphoreCreateInfo);
SIZE(timeline_features, VkPhysicalDeviceTimelineSemaphoreFeatures);
PLACE(timeline_features, timeline, VkPhysicalDeviceTimelineSemaphoreFeatures, timelineSemaphore);
SIZE(timeline_type_info, VkSemaphoreTypeCreateInfo);
PLACE(timeline_type_info, value, VkSemaphoreTypeCreateInfo, initialValue);
SIZE(timeline_info, VkTimelineSemaphoreSubmitInfo);
PLACE(timeline_info, waits, VkTimelineSemaphoreSubmitInfo, pWaitSemaphoreValues);
PLACE(timeline_info, signals, VkTimelineSemaphoreSubmitInfo, pSignalSemaphoreValues);
PLACE(submit_info, waits, VkSubmitInfo, pWaitSemaphores);
PLACE(submit_info, wait_stages, VkSubmitInfo, pWaitDstStageMask);
PLACE(submit_info, signals, VkSubmitInfo, pSignalSemaphores);
PLACE(buffer_info, families, VkBufferCreateInfo, pQueueFamilyIndices);

NUMBER(OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_HOST_MEMORY);
NUMBER(OUT_OF_DEVICE_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY);
NUMBER(DEVICE_LOST, VK_ERROR_DEVICE_LOST);
NUMBER(OUT_OF_POOL_MEMORY, VK_ERROR_OUT_OF_POOL_MEMORY);
NUMBER(APPLICATION_INFO, VK_STRUCTURE_TYPE_APPLICATION_INFO);
NUMBER(INSTANCE_INFO, VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
NUMBER(QUEUE_INFO, VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO);
NUMBER(DEVICE_INFO, VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO);
NUMBER(SUBMIT_INFO, VK_STRUCTURE_TYPE_SUBMIT_INFO);
NUMBER(ALLOCATE_INFO, VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO);
NUMBER(FENCE_INFO, VK_STRUCTURE_TYPE_FENCE_CREATE_INFO);
NUMBER(SEMAPHORE_INFO, VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO);
NUMBER(TIMELINE_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
NUMBER(TIMELINE_TYPE_INFO, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
NUMBER(TIMELINE_INFO, VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO);
NUMBER(BUFFER_INFO, VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO);
NUMBER(SHADER_INFO, VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO);
NUMBER(CACHE_INFO, VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO);
NUMBER(STAGE_INFO, VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO);
NUMBER(PIPELINE_INFO, VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO);
NUMBER(PIPELINE_LAYOUT_INFO, VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO);
NUMBER(SET_LAYOUT_INFO, VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO);
NUMBER(POOL_INFO, VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO);
NUMBER(SET_INFO, VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO);
NUMBER(WRITE_INFO, VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET);
NUMBER(COMMAND_POOL_INFO, VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
NUMBER(COMMAND_INFO, VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
NUMBER(BEGIN_INFO, VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
NUMBER(BARRIER_INFO, VK_STRUCTURE_TYPE_MEMORY_BARRIER);
NUMBER(PROPERTIES_2, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2);
NUMBER(MEMORY_PROPERTIES_2, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2);
NUMBER(SUBGROUP_PROPERTIES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES);
NUMBER(MAINTENANCE_3_PROPERTIES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
NUMBER(BUDGET_PROPERTIES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
NUMBER(FEATURES_2, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);
NUMBER(HALF_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
NUMBER(STORAGE_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
NUMBER(DOT_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES);
NUMBER(DOT_PROPERTIES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES);
NUMBER(MODEL_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES);
NUMBER(SIZE_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES);
NUMBER(SIZE_PROPERTIES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES);
NUMBER(SIZE_INFO, VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO);
NUMBER(FULL_SUBGROUPS, VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT);
NUMBER(STORAGE_BUFFER, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER);
NUMBER(COMPUTE_STAGE, VK_SHADER_STAGE_COMPUTE_BIT);
NUMBER(COMPUTE_QUEUE, VK_QUEUE_COMPUTE_BIT);
NUMBER(TRANSFER_QUEUE, VK_QUEUE_TRANSFER_BIT);
NUMBER(SPARSE_QUEUE, VK_QUEUE_SPARSE_BINDING_BIT);
NUMBER(PROTECTED_QUEUE, VK_QUEUE_PROTECTED_BIT);
NUMBER(SHARED_BY_FAMILIES, VK_SHARING_MODE_CONCURRENT);
NUMBER(TIMELINE, VK_SEMAPHORE_TYPE_TIMELINE);
NUMBER(SUBGROUP_ARITHMETIC, VK_SUBGROUP_FEATURE_ARITHMETIC_BIT);
NUMBER(BUFFER_USAGE, VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
NUMBER(AT_COMPUTE, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
NUMBER(AT_TRANSFER, VK_PIPELINE_STAGE_TRANSFER_BIT);
NUMBER(AT_HOST, VK_PIPELINE_STAGE_HOST_BIT);
NUMBER(SHADER_READ, VK_ACCESS_SHADER_READ_BIT);
NUMBER(SHADER_WRITE, VK_ACCESS_SHADER_WRITE_BIT);
NUMBER(TRANSFER_READ, VK_ACCESS_TRANSFER_READ_BIT);
NUMBER(TRANSFER_WRITE, VK_ACCESS_TRANSFER_WRITE_BIT);
NUMBER(HOST_READ, VK_ACCESS_HOST_READ_BIT);
NUMBER(DEVICE_LOCAL, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
NUMBER(HOST_VISIBLE, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT);
NUMBER(HOST_COHERENT, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
NUMBER(HOST_CACHED, VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
SAME(api_size, sizeof(fg__vk_api) / sizeof(fg_vulkan_fn), FG__COUNT(fg__vk_names));

int main(void) {
    return fg_backend_vulkan()->abi != FG_BACKEND_ABI;
}
