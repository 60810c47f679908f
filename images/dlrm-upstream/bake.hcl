# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.

variable "DLRM_CUDA_IMAGE" { default = "nvidia/cuda:12.1.1-devel-ubuntu22.04" }
variable "DLRM_CUDA_TOOLKIT" { default = "/usr/local/cuda-12.1" }
variable "DLRM_DESIGNS" { default = "artifact" }
variable "DLRM_ARCHS" { default = "8.0;9.0" }
variable "DLRM_LEAN" { default = "1" }
variable "DLRM_CAP_SCOPE" { default = "kernel" }
variable "DLRM_MAX_JOBS" { default = "" }
variable "DLRM_TRACES" { default = "" } # a folder with the authors' traces

target "dlrm-upstream-cuda" {
  inherits   = ["_image"]
  dockerfile = "dlrm-upstream/Dockerfile"
  contexts   = DLRM_TRACES == "" ? {} : { traces = DLRM_TRACES }
  args = {
    BASE_IMAGE           = AE_BASE_IMAGE == "" ? "debian:bookworm-slim" : AE_BASE_IMAGE
    CUDA_IMAGE           = DLRM_CUDA_IMAGE
    CUDA_TOOLKIT         = DLRM_CUDA_TOOLKIT
    DESIGNS              = DLRM_DESIGNS
    TORCH_CUDA_ARCH_LIST = DLRM_ARCHS
    LEAN                 = DLRM_LEAN
    CAP_SCOPE            = DLRM_CAP_SCOPE
    MAX_JOBS             = DLRM_MAX_JOBS
  }
  tags       = ["ae/dlrm-upstream:cuda"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/dlrm-upstream:cuda"]
  labels = {
    "org.opencontainers.image.title"       = "ae/dlrm-upstream"
    "org.opencontainers.image.description" = "The authors' own code of the DLRM paper, on PyTorch 2.1.0 compiled from source"
    "org.opencontainers.image.licenses"    = "BSD-3-Clause AND LicenseRef-artifact-without-licence"
  }
}
