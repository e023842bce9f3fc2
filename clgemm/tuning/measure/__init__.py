"""Is a configuration right (`verify`), and how fast is it (`measure`, `stopwatch`, `timing`)?"""
