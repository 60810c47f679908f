# See images/docker-bake.hcl. The registry of compose/registry.yaml.

target "registry-cpu" {
  inherits   = ["_native-cpu"]
  dockerfile = "registry/Dockerfile"
  tags       = ["ae/registry:cpu"]
  labels     = { "org.opencontainers.image.title" = "ae/registry", "org.opencontainers.image.description" = "A container registry that keeps what it is given" }
}
