# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.
# NVIDIA GPUs only: there is no flavour cpu.

variable "AUTOTM_CUDA_IMAGE" { default = "nvidia/cuda:10.1-cudnn7-devel-ubuntu18.04" }
variable "AUTOTM_COMMIT" { default = "e74a7e11b86d4421fe3eed913746358a4d0353cf" }

target "autotm-upstream-cuda" {
  inherits   = ["_image"]
  dockerfile = "autotm-upstream/Dockerfile"
  args = {
    CUDA_IMAGE    = AUTOTM_CUDA_IMAGE
    AUTOTM_COMMIT = AUTOTM_COMMIT
  }
  tags       = ["ae/autotm-upstream:cuda"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/autotm-upstream:cuda"]
  labels = {
    "ae.build.disk"                        = "30GB"
    "org.opencontainers.image.title"       = "ae/autotm-upstream"
    "org.opencontainers.image.description" = "The authors' own AutoTM, GPU part: tensor movement by integer programming on the nGraph fork"
    "org.opencontainers.image.licenses"    = "MIT AND Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA"
  }
}
