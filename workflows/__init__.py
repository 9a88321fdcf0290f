"""The bot: which job runs when, and how it survives a crash of anything but the disk.

    submit → store (SQLite) → worker claims → child process runs the pipeline → store
             tokens: sealed beside the job, wiped with its end

Only `store` decides who owns a job, by a lease with a fence. `worker` runs one job at a time in a `child`, so that
neither a crash nor an out-of-memory kill takes the application down. `process` ties the processes' lives together.
"""
