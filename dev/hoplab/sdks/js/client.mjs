// A client of the hop-limit lab: for every line on stdin it resolves credentials afresh, as any
// program on an instance would, and prints how long that took as one line of JSON. It prints "{}" when
// it is ready. It ends with stdin, so that it cannot outlive the lab, and never prints a credential.
import { createInterface } from "node:readline";
import { fromNodeProviderChain } from "@aws-sdk/credential-providers";

const say = (found) => process.stdout.write(`${JSON.stringify(found)}\n`);

say({});
for await (const _ of createInterface({ input: process.stdin })) {
  const started = process.hrtime.bigint();
  let error = "";
  try {
    await fromNodeProviderChain()();
  } catch (fault) {
    error = `${fault.name}: ${fault.message}`;
  }
  say({ seconds: Number(process.hrtime.bigint() - started) / 1e9, error });
}
process.exit(0);
